"use strict";
(() => {
  const by = (id) => document.getElementById(id);
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const CODECS = { h264: "avc1.42E01E", av1: "av01.0.05M.08", hevc: "hvc1.1.6.L93.B0", h265: "hvc1.1.6.L93.B0", vp9: "vp09.00.10.08" };
  const ROW = 58, FOLLOW_S = 0.12;

  const app = {
    dataset: null, episode: null, frame: 0, playing: false, since: 0, from: 0, speed: 1, screens: [],
    flagged: {}, turn: 0, list: { words: "", onlyFlagged: false, total: 0, shown: 0, loading: false, turn: 0 },
    plan: { delete: new Set(), relabel: new Map(), isSaved: true },
  };

  // Texts of the dataset enter the page as text nodes only.
  const make = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "text") node.textContent = value;
      else node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  };
  // `words` between backticks are set as code.
  const prose = (text) => {
    const parts = text.split("`");
    return parts.length % 2 ? parts.map((part, index) => index % 2 ? make("code", { text: part }) : part) : [text];
  };
  const ask = async (address, options) => {
    const answer = await fetch(address, options);
    const data = await answer.json();
    if (!answer.ok) throw new Error(data.hint ? `${data.error} (${data.hint})` : data.error);
    return data;
  };
  const seconds = (frame) => (frame / app.dataset.fps).toFixed(2);
  const length = () => app.episode ? Math.max(app.episode.length, 1) : 1;

  // ---- cameras: videos play, and a frame that stands still is decoded by mimetic, so that it is exactly this one ----
  class Screen {
    constructor(number, camera) {
      this.number = number;
      this.camera = camera;
      this.wanted = null;
      this.loading = false;
      this.image = make("img", { alt: camera.key });
      this.problem = make("p", { hidden: "" });
      this.place = make("span");
      this.box = make("div", { class: "screen" });
      if (camera.width && camera.height) this.box.style.aspectRatio = `${camera.width} / ${camera.height}`;
      this.video = null;
      const probe = document.createElement("video");
      const codec = CODECS[camera.codec];
      if (camera.is_video && codec && probe.canPlayType(`video/mp4; codecs="${codec}"`)) {
        this.video = make("video", { muted: "", playsinline: "", preload: "auto", hidden: "" });
        this.video.muted = true;
        const video = this.video;
        video.addEventListener("error", () => { // of this episode: the next one may lie in another file
          if (this.video !== video) return;
          video.remove();
          this.video = null;
          this.spare = video;
          this.image.hidden = false;
        });
        this.box.append(video);
      }
      this.box.append(this.image, this.problem);
      const kind = camera.is_depth ? "depth, near is bright" : `${camera.width} × ${camera.height}`;
      this.node = make("figure", { class: "camera" }, this.box, make("figcaption", {}, make("b", { text: camera.key.replace("observation.images.", "") }), this.place));
      this.place.textContent = kind;
    }

    open(episode) {
      this.start = episode.starts_s[this.number];
      this.problem.hidden = true;
      if (this.spare) {
        this.video = this.spare;
        this.spare = null;
        this.box.prepend(this.video);
      }
      if (this.video) {
        const source = `video/${this.number}/${episode.episode}`;
        this.video.src = source;
        this.video.hidden = true;
      }
      this.image.hidden = false;
    }

    show(frame) {
      this.wanted = `frame/${this.number}/${app.episode.episode}/${frame}`;
      if (!this.loading) this.load();
    }

    async load() {
      this.loading = true;
      while (this.wanted) {
        const source = this.wanted;
        this.wanted = null;
        const next = new Image();
        next.alt = this.camera.key;
        next.src = source;
        try {
          await next.decode();
          this.image.replaceWith(next);
          next.hidden = this.image.hidden;
          this.image = next;
          this.shown = source;
          this.problem.hidden = true;
        } catch {
          try { await ask(source); } catch (error) {
            if (!this.wanted) {
              this.problem.textContent = error.message;
              this.problem.hidden = false;
              this.image.hidden = true;
            }
          }
        }
      }
      this.loading = false;
      report();
    }

    time(frame) { return this.start + (frame + 0.5) / app.dataset.fps; }

    play(frame) {
      if (!this.video) return;
      this.video.currentTime = this.time(frame);
      this.video.playbackRate = app.speed;
      this.video.play().catch(() => {});
    }

    follow(exact) {
      const frame = Math.floor(exact);
      if (!this.video) { this.show(frame); return; }
      if (this.video.hidden && this.video.readyState >= 2 && !this.video.seeking) {
        this.video.hidden = false;
        this.image.hidden = true;
      }
      const away = this.video.currentTime - (this.start + (exact + 0.5) / app.dataset.fps);
      if (Math.abs(away) > FOLLOW_S * Math.max(app.speed, 1) && !this.video.seeking) this.video.currentTime = this.time(frame);
    }

    pause(frame) {
      if (this.video) {
        this.video.pause();
        this.video.hidden = true;
      }
      this.image.hidden = false;
      this.show(frame);
    }

    get waits() { return this.video && !this.video.hidden && this.video.readyState < 2; }
  }

  // ---- frame, playing ----
  const go = (frame) => {
    if (!app.episode) return;
    app.frame = Math.min(Math.max(0, Math.floor(frame)), length() - 1);
    app.from = app.frame;
    app.since = performance.now();
    for (const screen of app.screens) app.playing ? screen.play(app.frame) : screen.pause(app.frame);
    paint();
  };
  const play = (on) => {
    if (!app.episode || on === app.playing) return;
    if (on && app.frame >= length() - 1) app.frame = 0;
    app.playing = on;
    by("play").textContent = on ? "❚❚" : "▶";
    by("play").setAttribute("aria-label", on ? "pause" : "play");
    go(app.frame);
    if (on) requestAnimationFrame(tick);
  };
  const tick = (now) => {
    if (!app.playing) return;
    if (app.screens.some((screen) => screen.waits) && now - app.since < 5000) {
      app.from = app.frame;  // one camera lags: the others wait, so that all show one moment
      app.since = now;
    }
    const exact = app.from + Math.max(0, now - app.since) / 1000 * app.dataset.fps * app.speed;
    if (exact >= length() - 1) {
      app.frame = length() - 1;
      play(false);
      go(app.frame);
      return;
    }
    app.frame = Math.floor(exact);
    for (const screen of app.screens) screen.follow(exact);
    paint();
    requestAnimationFrame(tick);
  };

  // ---- drawing ----
  const sized = (canvas, height) => {
    const ratio = devicePixelRatio || 1, width = canvas.clientWidth || canvas.parentElement.clientWidth;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return [context, width];
  };
  const across = (frame, width) => (length() > 1 ? frame / (length() - 1) : 0) * (width - 2) + 1;
  const copyOf = (canvas) => {
    const copy = document.createElement("canvas");
    copy.width = canvas.width;
    copy.height = canvas.height;
    copy.getContext("2d").drawImage(canvas, 0, 0);
    return copy;
  };

  const drawTimeline = () => {
    const canvas = by("timeline");
    const lanes = app.episode ? app.episode.findings.filter((finding) => finding.spans.length).slice(0, 8) : [];
    const [context, width] = sized(canvas, 30 + lanes.length * 9);
    context.fillStyle = style("--soft");
    context.fillRect(0, 0, width, 30 + lanes.length * 9);
    if (!app.episode) return;
    context.font = "11px system-ui, sans-serif";
    const total = length() / app.dataset.fps, rough = total / Math.max(width / 90, 1);
    const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600].find((value) => value >= rough) || 7200;
    for (let at = 0; at <= total; at += step) {
      const x = across(at * app.dataset.fps, width);
      if (x > width - 30) break;
      context.fillStyle = style("--rule");
      context.fillRect(x, 0, 1, 30);
      context.fillStyle = style("--muted");
      context.fillText(`${Number(at.toFixed(1))} s`, x + 4, 12);
    }
    lanes.forEach((finding, lane) => {
      context.fillStyle = style(finding.claim === "DEFECT" ? "--defect" : "--risk");
      for (const [first, last] of finding.spans) {
        const x = across(first, width);
        context.fillRect(x, 30 + lane * 9, Math.max(3, across(last, width) - x), 6);
      }
    });
    app.timeline = copyOf(canvas);
  };

  const pairs = () => {
    const { curves } = app.episode;
    const states = curves.filter((curve) => curve.feature === "observation.state");
    const actions = curves.filter((curve) => curve.feature === "action");
    const rest = curves.filter((curve) => curve.feature !== "observation.state" && curve.feature !== "action");
    const rows = states.map((state) => ({ name: state.name, state, action: actions.find((action) => action.name === state.name) }));
    const used = new Set(rows.map((row) => row.action));
    for (const action of actions) if (!used.has(action)) rows.push({ name: action.name, action });
    for (const curve of rest) rows.push({ name: curve.name, state: curve });
    return rows;
  };

  const drawCurves = () => {
    const box = by("curves");
    box.replaceChildren();
    app.rows = null;
    if (!app.episode) return;
    if (!app.episode.curves.length) {
      box.append(make("p", { text: app.episode.problem || "There are no state or action channels." }));
      return;
    }
    const rows = pairs(), canvas = make("canvas", { id: "curve-canvas" });
    box.append(canvas);
    const [context, width] = sized(canvas, rows.length * ROW);
    context.font = "12px system-ui, sans-serif";
    context.lineJoin = "round";
    rows.forEach((row, index) => {
      const top = index * ROW + 19, bottom = (index + 1) * ROW - 6;
      const values = [...(row.state?.values || []), ...(row.action?.values || [])].filter((value) => value !== null);
      row.low = values.reduce((least, value) => Math.min(least, value), Infinity);
      row.high = values.reduce((most, value) => Math.max(most, value), -Infinity);
      if (row.high - row.low < 1e-6 * Math.max(1, Math.abs(row.high))) { row.low -= 0.5; row.high += 0.5; }
      if (index) {
        context.fillStyle = style("--rule");
        context.fillRect(0, index * ROW, width, 1);
      }
      context.fillStyle = style("--ink");
      context.fillText(row.name.length > 60 ? `${row.name.slice(0, 59)}…` : row.name, 8, index * ROW + 14);
      const line = (curve, colour, dash) => {
        context.strokeStyle = style(colour);
        context.setLineDash(dash);
        context.lineWidth = 1.4;
        context.beginPath();
        let pen = false;
        curve.values.forEach((value, at) => {
          if (value === null) { pen = false; return; }
          const x = across(app.episode.at[at], width), y = bottom - (value - row.low) / (row.high - row.low) * (bottom - top);
          pen ? context.lineTo(x, y) : context.moveTo(x, y);
          pen = true;
        });
        context.stroke();
        context.setLineDash([]);
      };
      if (row.action) line(row.action, "--action", [4, 3]);
      if (row.state) line(row.state, "--state", []);
    });
    app.rows = rows;
    app.curves = copyOf(canvas);
    scrub(canvas);
  };

  const nearest = (frame) => {
    const { at } = app.episode;
    let low = 0, high = at.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      at[middle] <= frame ? low = middle : high = middle - 1;
    }
    return low;
  };
  const stamp = (canvas, background) => {
    const context = canvas.getContext("2d"), ratio = devicePixelRatio || 1;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(background, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const width = canvas.width / ratio;
    context.fillStyle = style("--cursor");
    context.fillRect(across(app.frame, width) - 0.75, 0, 1.5, canvas.height / ratio);
    return [context, width];
  };
  const short = (value) => value === null || value === undefined ? "–" : Number(value.toPrecision(4)).toString();
  const paint = () => {
    if (!app.episode) return;
    const timeline = by("timeline");
    if (app.timeline) {
      const [context, width] = stamp(timeline, app.timeline);
      const x = across(app.frame, width);
      context.beginPath();
      context.moveTo(x - 5, 30);
      context.lineTo(x + 5, 30);
      context.lineTo(x, 23);
      context.fill();
    }
    const canvas = by("curve-canvas");
    if (canvas && app.rows) {
      const [context, width] = stamp(canvas, app.curves);
      const at = nearest(app.frame);
      context.font = "12px system-ui, sans-serif";
      context.textAlign = "right";
      app.rows.forEach((row, index) => {
        let x = width - 8;
        for (const [curve, colour] of [[row.action, "--action"], [row.state, "--state"]]) {
          if (!curve) continue;
          const text = short(curve.values[at]);
          context.fillStyle = style(colour);
          context.fillText(text, x, index * ROW + 14);
          x -= Math.max(52, context.measureText(text).width + 12);
        }
      });
      context.textAlign = "left";
    }
    timeline.setAttribute("aria-valuemax", length() - 1);
    timeline.setAttribute("aria-valuenow", app.frame);
    by("clock").replaceChildren(make("b", { text: `frame ${app.frame}` }), ` of ${length() - 1} · ${seconds(app.frame)} s`);
    report();
  };
  const report = () => {
    const still = !app.playing && app.screens.every((screen) => !screen.loading && !screen.wanted);
    by("exact").textContent = app.playing ? "" : still ? "exact frame" : "decoding …";
    const { dataset } = document.body;
    dataset.episode = app.episode ? app.episode.episode : "";
    dataset.frame = app.frame;
    dataset.playing = app.playing;
    dataset.ready = still && Boolean(app.episode);
  };
  const scrub = (canvas) => {
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      go(Math.round((event.clientX - box.left) / box.width * (length() - 1)));
    };
    canvas.addEventListener("pointerdown", (event) => {
      play(false);
      canvas.setPointerCapture(event.pointerId);
      at(event);
    });
    canvas.addEventListener("pointermove", (event) => { if (event.buttons & 1) at(event); });
  };

  // ---- episodes ----
  const open = async (number) => {
    play(false);
    const turn = ++app.turn;
    document.body.dataset.ready = false;
    let episode;
    try {
      episode = await ask(`episode/${number}`);
    } catch (error) {
      if (turn === app.turn) by("task").textContent = error.message;
      return;
    }
    if (turn !== app.turn) return;  // another one was asked for meanwhile
    app.episode = episode;
    app.frame = 0;
    by("episode").textContent = `Episode ${episode.episode}`;
    by("relabel-form").hidden = true;
    for (const screen of app.screens) screen.open(episode);
    by("more").textContent = episode.left_out ? `${episode.left_out} more channels are not drawn` : "";
    drawTask();
    drawFindings();
    drawTimeline();
    drawCurves();
    go(0);
    history.replaceState(null, "", `#${episode.episode}`);
    mark();
  };
  const drawTask = () => {
    const { episode, tasks } = app.episode, task = by("task"), changed = app.plan.relabel.get(episode);
    task.replaceChildren();
    const old = tasks.join("; ") || "no task";
    if (changed === undefined) task.append(old);
    else task.append(make("del", { text: old }), ` → ${changed}`);
    by("delete").setAttribute("aria-pressed", app.plan.delete.has(episode));
    by("relabel").setAttribute("aria-pressed", changed !== undefined);
  };
  const drawFindings = () => {
    by("findings").replaceChildren(...app.episode.findings.slice(0, 40).map((finding) => {
      const button = make("button", { type: "button", class: finding.claim, title: finding.impact });
      const where = finding.spans.length ? ` · frame ${finding.spans[0][0]}` : "";
      button.append(make("b", { text: finding.id }), ...prose(finding.message), where);
      button.addEventListener("click", () => { if (finding.spans.length) { play(false); go(finding.spans[0][0]); } });
      return button;
    }));
  };

  const entry = (row) => {
    const button = make("button", { type: "button", "data-episode": row.episode });
    button.append(make("span", { class: "number", text: row.episode }), make("span", { class: "task", text: row.task, title: row.task }), make("span", { class: "marks" }));
    button.dataset.length = row.length;
    button.addEventListener("click", () => open(row.episode));
    return make("li", {}, button);
  };
  const mark = () => {
    for (const button of by("list").querySelectorAll("button[data-episode]")) {
      const number = Number(button.dataset.episode), claim = app.flagged[number];
      const marks = button.querySelector(".marks");
      marks.replaceChildren();
      if (app.plan.relabel.has(number)) marks.append("✎ ");
      if (claim) marks.append(make("b", { class: claim, title: claim.toLowerCase(), text: claim === "DEFECT" ? "✕ " : "! " }));
      marks.append(`${(button.dataset.length / app.dataset.fps).toFixed(1)} s`);
      button.classList.toggle("gone", app.plan.delete.has(number));
      const is = app.episode !== null && number === app.episode.episode;
      button.setAttribute("aria-current", is);
      if (is) button.scrollIntoView({ block: "nearest" });
    }
  };
  const fill = async (fresh) => {
    const { list } = app;
    if (list.loading && !fresh) return;
    const turn = ++list.turn;
    list.loading = true;
    const query = new URLSearchParams({ offset: fresh ? 0 : list.shown, words: list.words, flagged: list.onlyFlagged ? 1 : 0 });
    const found = await ask(`episodes?${query}`);
    if (turn !== list.turn) return;
    if (fresh) { by("list").replaceChildren(); list.shown = 0; }
    list.total = found.total;
    list.shown += found.episodes.length;
    by("list").append(...found.episodes.map(entry));
    if (!found.total) by("list").append(make("li", { class: "note", text: "No episode matches." }));
    list.loading = false;
    mark();
  };
  by("list").addEventListener("scroll", (event) => {
    const node = event.target;
    if (app.list.shown < app.list.total && node.scrollTop + node.clientHeight > node.scrollHeight - 300) fill(false);
  });
  let typing = 0;
  by("filter").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => { app.list.words = by("filter").value; fill(true); }, 150);
  });
  by("flagged").addEventListener("change", () => { app.list.onlyFlagged = by("flagged").checked; fill(true); });

  // ---- marks: an edit plan, never an edit ----
  const changed = () => {
    app.plan.isSaved = false;
    drawTask();
    mark();
    drawPlan();
  };
  const drawPlan = () => {
    const { plan } = app, many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
    const parts = [];
    if (plan.delete.size) parts.push(`${many(plan.delete.size, "episode")} to delete`);
    if (plan.relabel.size) parts.push(`${many(plan.relabel.size, "task")} to set`);
    by("plan").hidden = !parts.length && plan.isSaved;
    by("plan-text").textContent = `${parts.join(", ") || "no marks"}${plan.isSaved ? " · saved" : ""}`;
    by("save").hidden = plan.isSaved;
    if (!plan.isSaved) by("commands").hidden = true;
  };
  const toggleDelete = () => {
    const { episode } = app.episode;
    if (!app.plan.delete.delete(episode)) app.plan.delete.add(episode);
    changed();
  };
  const startRelabel = () => {
    by("relabel-form").hidden = false;
    by("new-task").value = app.plan.relabel.get(app.episode.episode) ?? app.episode.tasks.join("; ");
    by("new-task").focus();
    by("new-task").select();
  };
  by("relabel-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = by("new-task").value.trim();
    if (text && text !== app.episode.tasks.join("; ")) app.plan.relabel.set(app.episode.episode, text);
    else app.plan.relabel.delete(app.episode.episode);
    by("relabel-form").hidden = true;
    by("new-task").blur();
    changed();
  });
  by("relabel-clear").addEventListener("click", () => {
    app.plan.relabel.delete(app.episode.episode);
    by("relabel-form").hidden = true;
    changed();
  });
  by("save").addEventListener("click", async () => {
    const body = JSON.stringify({ delete: [...app.plan.delete], relabel: Object.fromEntries(app.plan.relabel) });
    try {
      const saved = await ask("plan", { method: "POST", headers: { "Content-Type": "application/json" }, body });
      app.plan.isSaved = true;
      by("plan-commands").textContent = `# written to ${saved.path}\n${saved.commands.join("\n")}`;
      by("commands").hidden = false;
      by("commands").open = true;
      drawPlan();
      document.body.dataset.saved = "yes";
    } catch (error) {
      by("plan-text").textContent = error.message;
    }
  });
  addEventListener("beforeunload", (event) => { if (!app.plan.isSaved) event.preventDefault(); });

  // ---- keys ----
  const jump = () => {
    const starts = app.episode.findings.flatMap((finding) => finding.spans.map((span) => span[0])).sort((a, b) => a - b);
    const next = starts.find((start) => start > app.frame) ?? starts[0];
    if (next !== undefined) { play(false); go(next); }
  };
  const step = (frames) => { play(false); go(app.frame + frames); };
  const leap = (seconds) => go(app.frame + Math.round(seconds * app.dataset.fps));
  const KEYS = {
    " ": () => play(!app.playing), ",": () => step(-1), ".": () => step(1),
    ArrowLeft: (event) => leap(event.shiftKey ? -5 : -1), ArrowRight: (event) => leap(event.shiftKey ? 5 : 1),
    Home: () => go(0), End: () => go(length() - 1), j: () => open(app.episode.next), k: () => open(app.episode.previous),
    n: jump, x: toggleDelete, r: startRelabel, "/": () => by("filter").focus(), "?": () => by("keys").showModal(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.target.matches("input")) { event.target.blur(); by("relabel-form").hidden = true; return; }
    if (event.ctrlKey || event.metaKey || event.altKey || !app.episode || by("keys").open) return;
    if (event.target.matches("input:not([type=checkbox]), select, textarea")) return;
    const action = KEYS[event.key];
    if (!action) return;
    event.preventDefault();
    if (event.target.matches("button")) event.target.blur();
    action(event);
  });
  by("play").addEventListener("click", () => play(!app.playing));
  by("back").addEventListener("click", () => step(-1));
  by("forth").addEventListener("click", () => step(1));
  by("delete").addEventListener("click", toggleDelete);
  by("relabel").addEventListener("click", startRelabel);
  by("help").addEventListener("click", () => by("keys").showModal());
  by("speed").addEventListener("change", () => { app.speed = Number(by("speed").value); by("speed").blur(); if (app.playing) go(app.frame); });
  addEventListener("hashchange", () => {
    const number = Number(location.hash.slice(1));
    if (Number.isInteger(number) && app.dataset) open(number);
  });
  scrub(by("timeline"));
  let resizing = 0;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => { drawTimeline(); drawCurves(); paint(); }, 80);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawTimeline(); drawCurves(); paint(); });

  // ---- findings of a check that may still run ----
  const learn = (state) => {
    app.flagged = state.flagged;
    by("check").textContent = state.check.note + (state.whole.length ? ` · ${state.whole.length} on the whole dataset` : "");
    by("check").title = state.whole.map((finding) => `${finding.id}: ${finding.message}`).join("\n");
    mark();
    if (state.check.state === "running") setTimeout(poll, 700);
  };
  const poll = async () => {
    const state = await ask("marks");
    learn(state);
    if (state.check.state === "done" && app.episode) {
      app.episode.findings = (await ask(`episode/${app.episode.episode}`)).findings;
      drawFindings();
      drawTimeline();
      paint();
    }
    if (app.list.onlyFlagged) fill(true);
  };

  const start = async () => {
    try {
      app.dataset = await ask("dataset");
    } catch (error) {
      by("episode").textContent = "Nothing can be shown";
      by("task").textContent = error.message;
      return;
    }
    const { name, episodes, frames, fps, robot, cameras, plan } = app.dataset;
    document.title = `${name} · mimetic`;
    by("name").textContent = name;
    by("facts").textContent = [`${episodes} episodes`, `${(frames / fps / 60).toFixed(1)} min`, `${fps} Hz`, robot].filter(Boolean).join(" · ");
    app.plan.delete = new Set(plan.delete);
    app.plan.relabel = new Map(Object.entries(plan.relabel).map(([episode, task]) => [Number(episode), task]));
    app.screens = cameras.map((camera, number) => new Screen(number, camera));
    by("cameras").append(...app.screens.map((screen) => screen.node));
    if (cameras.length === 1) by("cameras").style.maxWidth = "760px";
    await fill(true);
    drawPlan();
    const asked = Number(location.hash.slice(1));
    await open(location.hash.length > 1 && Number.isInteger(asked) ? asked : app.dataset.first);
    learn(app.dataset);
  };
  start();
})();
