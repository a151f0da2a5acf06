"""Chromium driven by its own driver over plain HTTP: open, read, press keys, look. Nothing to install but the browser."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SPECIAL = {
    "Escape": "\ue00c",
    "ArrowLeft": "\ue012",
    "ArrowRight": "\ue014",
    "Home": "\ue011",
    "End": "\ue010",
    "Enter": "\ue007",
}


def find():
    """Paths of the browser and of its driver; None where one of them is missing."""
    browser = next((path for path in map(shutil.which, BROWSERS) if path), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Chrome:
    """One browser without a window; a context manager."""

    def __init__(self, profile, size=(1280, 900)):
        self.browser, driver = find()
        self.process = subprocess.Popen(
            [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        port = None
        for line in self.process.stdout:
            match = re.search(r"successfully on port (\d+)", line)
            if match:
                port = match[1]
                break
        self.base = f"http://127.0.0.1:{port}"
        arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--mute-audio",
            "--disable-dev-shm-usage",
            f"--user-data-dir={profile}",
            f"--window-size={size[0]},{size[1]}",
        ]
        options = {"binary": self.browser, "args": arguments}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        try:
            self.session = self._post("/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        except BaseException:
            self._end()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *error):
        try:
            self._send("DELETE", f"/session/{self.session}")
        finally:
            self._end()

    def open(self, url):
        self._do("/url", {"url": url})

    def run(self, script, *arguments):
        """What the body of a function gives in the page."""
        return self._do("/execute/sync", {"script": script, "args": list(arguments)})

    def press(self, *keys):
        """Press keys, one after the other."""
        actions = []
        for key in keys:
            value = SPECIAL.get(key, key)
            actions += [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        self._do("/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def click(self, selector):
        element = self._do("/element", {"using": "css selector", "value": selector})
        self._do(f"/element/{next(iter(element.values()))}/click", {})

    def wait(self, script, seconds=20.0):
        """Wait until an expression holds in the page, and give its value."""
        end = time.monotonic() + seconds
        while True:
            value = self.run(f"return ({script})")
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"never true: {script}; the page says {self.log()}")
            time.sleep(0.03)

    def log(self):
        """Errors that the page has written since the last look."""
        entries = self._do("/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def screenshot(self):
        with urllib.request.urlopen(f"{self.base}/session/{self.session}/screenshot", timeout=60) as answer:
            return base64.b64decode(json.load(answer)["value"])

    def resize(self, width, height):
        self._do("/window/rect", {"width": width, "height": height})

    def _do(self, path, data):
        return self._post(f"/session/{self.session}{path}", data)

    def _post(self, path, data):
        return self._send("POST", path, json.dumps(data).encode())

    def _send(self, method, path, data=None):
        request = urllib.request.Request(
            self.base + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{path}: {error.read().decode()[:600]}") from None

    def _end(self):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.process.stdout.close()
