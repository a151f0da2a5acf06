"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const colour = { DEFECT: "var(--mark-defect)", RISK: "var(--mark-risk)" };
  const CLUSTERS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c7ae6", "#7f8c3a"];

  // Everything from the dataset enters as text or as an attribute's value, never as markup.
  const make = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "text") node.textContent = value;
      else if (key === "style") node.style.cssText = value;
      else node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  };
  const draw = (name, attributes = {}, text) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const canvas = (width, height, label) =>
    draw("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", role: "img", "aria-label": label });

  // Words in a chart keep their size: a narrow window gets a narrower drawing, not a smaller one.
  const WIDE = Math.min(1060, Math.max(420, document.documentElement.clientWidth - 40));

  const tip = make("div", { class: "tip", role: "status", hidden: "" });
  document.body.append(tip);
  const tell = (node, words) => {
    const show = (event) => {
      tip.textContent = typeof words === "function" ? words(event) : words;
      tip.hidden = !tip.textContent;
      const box = tip.getBoundingClientRect();
      tip.style.left = `${Math.min(event.clientX + 14, innerWidth - box.width - 8)}px`;
      tip.style.top = `${Math.max(event.clientY - box.height - 10, 8)}px`;
    };
    node.addEventListener("pointermove", show);
    node.addEventListener("pointerleave", () => { tip.hidden = true; });
  };

  const open = (id, fill) => {
    const section = document.getElementById(id);
    const body = section.querySelector(".body");
    try {
      if (fill(body, section) !== false) section.hidden = false;
    } catch (error) {
      console.error(id, error);
    }
  };
  const legend = (...entries) =>
    make("div", { class: "legend" }, ...entries.map(([words, style, kind = ""]) => {
      const line = make("span");
      line.append(make("i", { class: kind, style }), words);
      return line;
    }));
  const nice = (low, high, count) => {
    const rough = (high - low) / Math.max(count, 1);
    if (!(rough > 0)) return [low];
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((part) => part * power).find((part) => part >= rough * 0.999);
    const ticks = [];
    for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) ticks.push(Math.abs(value) < step * 1e-9 ? 0 : value);
    return ticks;
  };
  // Not Math.min(...values): a call has room for some ten thousand arguments only.
  const least = (values) => values.reduce((low, value) => Math.min(low, value), Infinity);
  const most = (values) => values.reduce((high, value) => Math.max(high, value), -Infinity);
  const short = (value) => {
    if (value === null || value === undefined) return "–";
    const rounded = Number(value.toPrecision(4));
    return Math.abs(rounded) < 1e5 ? rounded.toString() : rounded.toExponential().replace("e+", "e");
  };
  const frame = (svg, box, x, y, words = {}) => {
    for (const value of y.ticks) {
      svg.append(draw("line", { class: "axis", x1: box.left, x2: box.right, y1: y.at(value), y2: y.at(value) }));
      svg.append(draw("text", { x: box.left - 6, y: y.at(value) + 4, "text-anchor": "end" }, y.say ? y.say(value) : short(value)));
    }
    for (const value of x.ticks) {
      const at = x.at(value), anchor = at > box.right - 12 ? "end" : "middle";
      svg.append(draw("text", { x: Math.min(at, box.right), y: box.bottom + 15, "text-anchor": anchor }, x.say ? x.say(value) : short(value)));
    }
    if (words.x) svg.append(draw("text", { x: box.right, y: box.bottom + 31, "text-anchor": "end" }, words.x));
    if (words.y) svg.append(draw("text", { x: box.left, y: box.top - 8 }, words.y));
  };
  const scale = (low, high, from, to) => (value) => from + (value - low) / ((high - low) || 1) * (to - from);
  const place = new Map(data.episodes.map((episode, index) => [episode, index]));
  const episodeTicks = () => {
    const last = data.episodes.length - 1;
    return nice(0, Math.max(last, 1), Math.min(WIDE / 100, Math.max(last, 1))).filter((value) => Number.isInteger(value) && value <= last);
  };
  const name = (index) => data.episodes[Math.min(index, data.episodes.length - 1)];

  open("map", (body) => {
    const { rows, columns, step } = data.map;
    if (!rows.length || data.episodes.length < 2) return false;
    body.append(legend(["defect", "background:var(--mark-defect)"], ["risk", "background:var(--mark-risk)"], ["nothing found", "background:var(--soft)"]));
    const width = WIDE, left = width > 700 ? 190 : 150, high = 18, gap = rows.length > 12 ? 2 : 4;
    const cell = (width - left) / columns, bottom = rows.length * (high + gap);
    const svg = canvas(width, bottom + 24, "findings by rule and episode");
    rows.forEach((row, index) => {
      const y = index * (high + gap);
      svg.append(draw("text", { x: left - 10, y: y + 13, "text-anchor": "end", class: "strong" }, row.id));
      svg.append(draw("rect", { x: left, y, width: width - left, height: high, rx: 3, fill: "var(--soft)" }));
      for (const at of row.cells) {
        const space = cell > 6 ? 1 : 0;
        svg.append(draw("rect", { x: left + at * cell + space / 2, y, width: Math.max(cell - space, 1), height: high, rx: cell > 6 ? 2 : 0, fill: colour[row.claim] }));
      }
      const over = draw("rect", { x: left, y, width: width - left, height: high, fill: "transparent" });
      tell(over, (event) => {
        const box = svg.getBoundingClientRect();
        const at = Math.floor(((event.clientX - box.left) / box.width * width - left) / cell);
        const first = name(at * step), last = name(at * step + step - 1);
        const words = first === last ? `episode ${first}` : `episodes ${first} to ${last}`;
        return `${row.id}, ${words}: ${row.cells.includes(at) ? row.claim.toLowerCase() : "nothing found"}`;
      });
      svg.append(over);
    });
    for (const index of episodeTicks()) svg.append(draw("text", { x: left + (index / step + 0.5) * cell, y: bottom + 16, "text-anchor": "middle" }, name(index)));
    svg.append(draw("text", { x: left - 10, y: bottom + 16, "text-anchor": "end" }, "episode"));
    body.append(svg);
  });

  const jpeg = (code) => `data:image/jpeg;base64,${code}`;
  const enlarge = (camera, item) => {
    const dialog = make("dialog");
    const row = make("div", { class: "row" });
    for (const [number, code] of item.frames) {
      row.append(make("figure", {}, make("img", { src: jpeg(code), alt: "" }), make("figcaption", { text: `frame ${number}, ${(number / data.fps).toFixed(1)} s` })));
    }
    dialog.append(row, make("p", { text: `${camera}, episode ${item.episode}. Esc closes.` }));
    dialog.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  };
  open("footage", (body) => {
    if (!data.cameras.length) return false;
    for (const camera of data.cameras) {
      const grid = make("div", { class: "footage" });
      for (const item of camera.episodes) {
        const middle = item.frames[item.frames.length >> 1];
        const picture = make("img", { src: jpeg(middle[1]), alt: `${camera.key}, episode ${item.episode}` });
        const button = make("button", { type: "button", class: item.flag.toLowerCase(), title: "show more frames" }, picture, `${item.episode}`);
        let timer = 0;
        button.addEventListener("pointerenter", () => {
          let at = 0;
          timer = setInterval(() => { picture.src = jpeg(item.frames[at++ % item.frames.length][1]); }, 450);
        });
        button.addEventListener("pointerleave", () => { clearInterval(timer); picture.src = jpeg(middle[1]); });
        button.addEventListener("click", () => enlarge(camera.key, item));
        grid.append(button);
      }
      body.append(make("div", { class: "strip" }, make("h4", { text: camera.key }), grid));
    }
  });

  open("moves", (body) => {
    if (!data.moves.length) return false;
    for (const move of data.moves) {
      const over = make("img", { class: "over", src: jpeg(move.after), alt: "background after" });
      const edge = make("div", { class: "edge" });
      const slider = make("input", { type: "range", min: 0, max: 100, value: 50, "aria-label": "compare before and after" });
      const set = () => {
        over.style.clipPath = `inset(0 0 0 ${slider.value}%)`;
        edge.style.left = `calc(${slider.value}% - 1px)`;
      };
      slider.addEventListener("input", set);
      set();
      const box = make("div", { class: "compare" }, make("img", { src: jpeg(move.before), alt: "background before" }), over, edge, slider);
      const [right, down] = move.shift;
      const list = move.episodes.length > 8 ? `${move.episodes.length} episodes, from ${move.episodes[0]} to ${move.episodes.at(-1)}` : `episodes ${move.episodes.join(", ")}`;
      const words = make("div", {},
        make("p", { text: `Left of the line: where most episodes saw the scene from. Right: ${list}.` }),
        make("p", { text: `The picture is shifted by ${Math.hypot(right, down).toFixed(1)} px: ${Math.abs(right).toFixed(1)} px to the ${right < 0 ? "left" : "right"}, ${Math.abs(down).toFixed(1)} px ${down < 0 ? "up" : "down"}.` }),
        make("p", { class: "note", text: "At deployment, put the live camera where most episodes saw the scene from." }),
        make("div", { class: "both" },
          make("figure", {}, make("img", { src: jpeg(move.before), alt: "background of most episodes" }), make("figcaption", { text: "most episodes" })),
          make("figure", {}, make("img", { src: jpeg(move.after), alt: "background of the others" }), make("figcaption", { text: "moved" }))));
      body.append(make("div", { class: "pair" }, make("h4", { text: move.camera }), box, words));
    }
  });

  const steps = (values, box, x, y, stroke) => {
    let path = "", pen = false;
    values.forEach((value, index) => {
      if (value === null) { pen = false; return; }
      path += `${pen ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = true;
    });
    return draw("path", { d: path, fill: "none", stroke, "stroke-width": 1.6, "stroke-linejoin": "round" });
  };
  open("cameras", (body) => {
    if (!data.curves.length || data.episodes.length < 2) return false;
    const grid = make("div", { class: "grid", style: "grid-template-columns:repeat(auto-fill,minmax(min(100%,430px),1fr))" });
    for (const curve of data.curves) {
      const known = curve.values.filter((value) => value !== null);
      const top = Math.max(most(known), curve.what === "shift" ? 4 : 1) * 1.08;
      const low = curve.what === "shift" ? 0 : Math.max(0, least(known) * 0.9);
      const width = Math.min(510, WIDE), box = { left: 46, right: width - 10, top: 16, bottom: 108 };
      const svg = canvas(width, 142, `${curve.what} of ${curve.camera} over the episodes`);
      const x = scale(0, data.episodes.length - 1, box.left, box.right), y = scale(low, top, box.bottom, box.top);
      frame(svg, box, { ticks: episodeTicks(), at: x, say: name }, { ticks: nice(low, top, 3), at: y }, { x: "episode" });
      svg.append(steps(curve.values, box, x, y, "var(--mark-line)"));
      curve.values.forEach((value, index) => {
        if (value === null) return;
        const dot = draw("circle", { cx: x(index), cy: y(value), r: data.episodes.length > 150 ? 1.4 : 2.6, fill: "var(--mark-line)" });
        tell(dot, `episode ${data.episodes[index]}: ${short(value)} ${curve.unit}`);
        svg.append(dot);
      });
      grid.append(make("div", {}, make("h4", { text: `${curve.camera}, ${curve.what} [${curve.unit}]` }), svg));
    }
    body.append(grid);
  });

  const hull = (points) => {
    const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    const half = (list) => {
      const out = [];
      for (const point of list) {
        while (out.length > 1) {
          const [a, b] = [out.at(-2), out.at(-1)];
          if ((b[0] - a[0]) * (point[1] - a[1]) - (b[1] - a[1]) * (point[0] - a[0]) > 0) break;
          out.pop();
        }
        out.push(point);
      }
      out.pop();
      return out;
    };
    return [...half(sorted), ...half(sorted.reverse())];
  };
  open("coverage", (body, section) => {
    const found = data.coverage;
    if (!found || found.points.length < 2) return false;
    if (!found.with_grasp) section.querySelector("h2").textContent = "Where the robot starts";
    const repeated = new Map();
    for (const point of found.points) repeated.set(point[2], (repeated.get(point[2]) || 0) + 1);
    const order = [...repeated].filter(([, count]) => count > 1).sort((a, b) => b[1] - a[1]).map(([cluster]) => cluster);
    const hue = (cluster) => order.includes(cluster) ? CLUSTERS[order.indexOf(cluster) % CLUSTERS.length] : "var(--mark-grey)";
    const entries = [];
    if (order.length) entries.push([order.length === 1 ? "one start situation with repetitions" : `one colour for each of ${order.length} start situations with repetitions`, `background:${CLUSTERS[0]}`, "round"]);
    if (order.length < repeated.size) entries.push(["seen once", "background:var(--mark-grey)", "round"]);
    if (found.held.length) entries.push([`proposed to be held out: ${found.reason}`, "border-color:var(--ink)", "round hollow"]);
    body.append(legend(...entries));
    const box = { left: 44, right: WIDE - 10, top: 22, bottom: 380 };
    const xs = found.points.map((point) => point[0]), ys = found.points.map((point) => point[1]);
    const pad = (values) => {
      const low = least(values), high = most(values), room = (high - low || 1) * 0.08;
      return [low - room, high + room];
    };
    const [x0, x1] = pad(xs), [y0, y1] = pad(ys);
    const x = scale(x0, x1, box.left, box.right), y = scale(y0, y1, box.bottom, box.top);
    const svg = canvas(WIDE, 418, "coverage of start and grasp positions");
    frame(svg, box, { ticks: nice(x0, x1, WIDE / 170), at: x }, { ticks: nice(y0, y1, 5), at: y }, { x: "first direction, in ranges", y: "second direction" });
    const outline = hull(found.points.map((point) => [x(point[0]), y(point[1])]));
    if (outline.length > 2) svg.append(draw("path", { d: `M${outline.map((point) => point.map((v) => v.toFixed(1)).join(" ")).join("L")}Z`, fill: "var(--mark-line)", "fill-opacity": 0.06, stroke: "var(--mark-line)", "stroke-opacity": 0.35, "stroke-dasharray": "4 4" }));
    const size = found.points.length > 300 ? 3 : 5.5;
    for (const [px, py, cluster, episode, held] of found.points) {
      const dot = draw("circle", { cx: x(px), cy: y(py), r: size, fill: hue(cluster), "fill-opacity": 0.85, stroke: held ? "var(--ink)" : "var(--card)", "stroke-width": held ? 2.2 : 1 });
      tell(dot, `episode ${episode}, situation ${cluster} (${repeated.get(cluster)} episode${repeated.get(cluster) === 1 ? "" : "s"})${held ? ", proposed to be held out" : ""}`);
      svg.append(dot);
    }
    body.append(svg);
  });

  open("lengths", (body) => {
    if (data.lengths.length < 2 || !data.fps) return false;
    const seconds = data.lengths.map((length) => length / data.fps);
    const low = least(seconds), high = most(seconds);
    const count = high - low < 1e-9 ? 1 : Math.min(30, Math.max(6, Math.ceil(Math.sqrt(seconds.length) * 1.6)));
    const width = (high - low || 1) / count, bins = Array.from({ length: count }, () => []);
    seconds.forEach((value, index) => bins[Math.min(count - 1, Math.floor((value - low) / width))].push(data.episodes[index]));
    const top = most(bins.map((bin) => bin.length));
    const box = { left: 40, right: WIDE - 10, top: 10, bottom: 150 };
    const svg = canvas(WIDE, 186, "histogram of episode lengths");
    const from = count === 1 ? Math.max(0, low - 0.5) : low, to = count === 1 ? low + 0.5 : high;
    const x = scale(from, to, box.left, box.right), y = scale(0, top * 1.05, box.bottom, box.top);
    frame(svg, box, { ticks: nice(from, to, WIDE / 130), at: x }, { ticks: nice(0, top, 4).filter(Number.isInteger), at: y }, { x: "length [s]" });
    bins.forEach((bin, index) => {
      if (!bin.length) return;
      const left = count === 1 ? Math.max(box.left, x(low) - 40) : x(low + index * width) + 1;
      const bar = draw("rect", { x: left, y: y(bin.length), width: Math.max(2, count === 1 ? 80 : x(low + (index + 1) * width) - x(low + index * width) - 2), height: box.bottom - y(bin.length), rx: 2, fill: "var(--mark-line)" });
      tell(bar, `${bin.length} episode${bin.length === 1 ? "" : "s"}: ${bin.slice(0, 12).join(", ")}${bin.length > 12 ? " ..." : ""}`);
      svg.append(bar);
    });
    body.append(svg);
  });

  open("timing", (body) => {
    const found = data.timing;
    if (!found || !found.off_ms.some((value) => value !== null) || data.episodes.length < 1) return false;
    const floor = 1e-4;
    const known = found.off_ms.filter((value) => value !== null);
    const low = -4, high = Math.max(Math.ceil(Math.log10(Math.max(most(known), found.half_frame_ms, floor))), 0);
    const box = { left: 62, right: WIDE - 10, top: 20, bottom: 150 };
    const svg = canvas(WIDE, 186, "distance of time stamps from the frame grid");
    const x = scale(-0.5, data.episodes.length - 0.5, box.left, box.right);
    const y = (value) => scale(low, high, box.bottom, box.top)(Math.log10(Math.max(value, floor)));
    const ticks = [];
    for (let power = low; power <= high; power += 1) ticks.push(10 ** power);
    frame(svg, box, { ticks: episodeTicks(), at: x, say: name }, { ticks, at: y, say: (value) => value <= floor ? "0" : short(value) }, { x: "episode", y: "ms" });
    for (const [value, words] of [[found.tolerance_ms, "usual tolerance"], [found.half_frame_ms, "half a frame"]]) {
      svg.append(draw("line", { x1: box.left, x2: box.right, y1: y(value), y2: y(value), stroke: "var(--muted)", "stroke-dasharray": "5 4" }));
      svg.append(draw("text", { x: box.right - 4, y: y(value) - 5, "text-anchor": "end" }, words));
    }
    found.off_ms.forEach((value, index) => {
      if (value === null) return;
      const fill = value >= found.half_frame_ms ? "var(--mark-defect)" : value > found.tolerance_ms ? "var(--mark-risk)" : "var(--mark-good)";
      const dot = draw("circle", { cx: x(index), cy: y(value), r: data.episodes.length > 200 ? 1.6 : 3, fill });
      const rate = found.rate_hz && found.rate_hz[index] ? `, measured rate ${short(found.rate_hz[index])} Hz` : "";
      tell(dot, `episode ${data.episodes[index]}: up to ${short(value)} ms off${rate}`);
      svg.append(dot);
    });
    body.append(svg);
  });

  open("joints", (body) => {
    if (!data.joints.length) return false;
    const marked = new Set(data.joints.flatMap((joint) => joint.concerned));
    body.append(legend(["episode", "background:var(--mark-grey)"], ...(marked.size ? [["with a defect", "background:var(--mark-defect)"], ["with a risk", "background:var(--mark-risk)"]] : []), ["median of all", "background:var(--mark-line)"]));
    const grid = make("div", { class: "grid" });
    for (const joint of data.joints) {
      const svg = canvas(260, 138, `${joint.name} over all episodes`);
      const box = { left: 42, right: 254, top: 8, bottom: 112 };
      const points = joint.lines[0].length;
      const x = scale(0, points - 1, box.left, box.right), y = scale(0, 1000, box.bottom, box.top);
      const value = scale(joint.low, joint.high, 0, 1000);
      frame(svg, box, { ticks: [0, points - 1], at: x, say: (at) => at ? "end" : "start" }, { ticks: joint.high > joint.low ? nice(joint.low, joint.high, 3) : [joint.low], at: (v) => y(value(v)) });
      const concerned = new Set(joint.concerned);
      const order = joint.episodes.map((episode, index) => [concerned.has(episode), episode, index]).sort((a, b) => a[0] - b[0]);
      for (const [is, episode, index] of order) {
        const stroke = is ? colour[data.flagged[episode]] || "var(--mark-risk)" : "var(--mark-grey)";
        const line = steps(joint.lines[index], box, x, y, stroke);
        line.setAttribute("stroke-width", is ? 1.5 : 1);
        line.setAttribute("stroke-opacity", is ? 0.95 : joint.episodes.length > 30 ? 0.3 : joint.episodes.length > 8 ? 0.55 : 0.9);
        tell(line, `episode ${episode}`);
        svg.append(line);
      }
      const middle = Array.from({ length: points }, (_, at) => {
        const all = joint.lines.map((line) => line[at]).filter((v) => v !== null).sort((a, b) => a - b);
        return all.length ? all[all.length >> 1] : null;
      });
      svg.append(steps(middle, box, x, y, "var(--mark-line)"));
      const unit = joint.unit && joint.unit.length < 12 ? ` [${joint.unit}]` : "";
      grid.append(make("div", {}, make("h4", { text: joint.name + unit, title: joint.name + unit }), svg));
    }
    body.append(grid);
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      const range = document.createRange();
      range.selectNodeContents(code);
      const selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      document.execCommand("copy");
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1200);
  });
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((node) => { node.open = true; }));
  document.documentElement.dataset.drawn = "yes";
})();
