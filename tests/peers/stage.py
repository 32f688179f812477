"""What the talk stands on: the counterparts and the daemon as child processes, and looks at both ends of the wires.

Nothing here waits for a while; everything waits for a value, for at most PATIENCE seconds, and then says what it saw.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
TOKEN = "123456:PEERS-TESTTOKEN"
KEY = "peers-test-key"
ANN = {"id": 1, "is_bot": False, "first_name": "Ann", "username": "ann", "language_code": "en"}
EVE = {"id": 2, "is_bot": False, "first_name": "Eve", "username": "eve", "language_code": "en"}
PATIENCE = 330  # a turn's own budget is 300

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Stuck(Exception):
    """The talk cannot go on."""


def wait_for(what, look, patience=PATIENCE):
    """Looks until `look` gives something true; raises Stuck with `what` when patience is over."""
    end, pause = time.monotonic() + patience, 0.005
    while True:
        value = look()
        if value:
            return value
        if time.monotonic() > end:
            raise Stuck(f"waited {patience} s in vain: {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.2)


class Child:
    """A process of ours with its output in a file; ended by its own pid."""

    def __init__(self, argv, log, env=None):
        self.log = log
        with open(log, "ab") as out:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env)

    def is_alive(self):
        return self.process.poll() is None

    def end(self, how=signal.SIGTERM, patience=40):
        """Sends a signal and gives the exit code; negative when a signal ended it."""
        if self.is_alive():
            self.process.send_signal(how)
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None

    def printed_url(self, name, words):
        """Waits until the program prints where it is up, after `words`."""

        def look():
            found = re.search(rf"\b{words} (http://127\.0\.0\.1:\d+)", self.log.read_text("utf8", "replace"))
            if not found and not self.is_alive():
                raise Stuck(f"{name} ended before it was up:\n{self.tail()}")
            return found

        return wait_for(f"{name} is up", look, 60)[1]

    def tail(self, lines=40):
        return "\n".join(self.log.read_text("utf8", "replace").splitlines()[-lines:])


class Counterpart(Child):
    """A server that prints `… up on URL` when it is ready."""

    def __init__(self, name, *args, out):
        self.name = name
        self.wire = out / f"{name}.jsonl"
        super().__init__(
            [sys.executable, str(HERE / f"{name}.py"), *args, "--log", str(self.wire)], out / f"{name}.log"
        )

    def wait_until_up(self):
        self.url = self.printed_url(self.name, "up on")

    def ask(self, path, body=None, method=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"}, method=method)
        with _direct.open(request, timeout=20) as answer:
            return json.load(answer)


class Aimock(Child):
    """A scripted model of others, which speaks Messages with reasoning and calls; from the package index of node."""

    def __init__(self, program, out, fixtures):
        script = out / "fixtures.json"
        script.write_text(json.dumps({"fixtures": fixtures}), "utf8")
        super().__init__([program, "--port", "0", "--fixtures", str(script), "--strict"], out / "aimock.log")

    def wait_until_up(self):
        self.url = self.printed_url("aimock", "listening on")


class Telegram(Counterpart):
    def __init__(self, out):
        super().__init__("tg_fake", "--token", TOKEN, out=out)

    def says(self, text, who=ANN):
        """A person writes in the private chat with the bot; gives the message's id."""
        chat = {"id": who["id"], "type": "private", "first_name": who["first_name"], "username": who["username"]}
        return self.ask("/__user/send", {"text": text, "from": who, "chat": chat})["message"]["message_id"]

    def chat(self, who=ANN):
        """The chat as the person sees it, oldest first."""
        return self.ask(f"/__chat?id={who['id']}")

    def replies_after(self, message_id, who=ANN):
        return [m for m in self.chat(who) if m["message_id"] > message_id and m["from"]["is_bot"]]

    def fault(self, **what):
        self.ask("/__ctl", what)

    def faults_left(self):
        return self.ask("/__ctl")

    def calls(self, method=None):
        return [call for call in self.ask("/__log") if method in (None, call["method"])]


class Model(Counterpart):
    def __init__(self, out, offers, backend=None):
        """`offers` are values for arguments of its calls; so small a model rarely finds a path by itself. With a
        `backend` that one answers, and the model only writes down what is asked."""
        args = [f"--offer={name}={','.join(values)}" for name, values in offers.items()]
        super().__init__("llm_real", *args, *(["--backend", backend] if backend else []), out=out)

    def faulty_requests(self):
        """What the vendors' own types say against the requests so far: whether all is well, and the words."""
        argv = [sys.executable, HERE / "llm_wire_check.py", self.wire]
        checked = subprocess.run(argv, check=False, capture_output=True, text=True)
        return checked.returncode == 0, checked.stdout + checked.stderr

    def fault(self, **what):
        self.ask("/__ctl", what)

    def requests_seen(self):
        return self.ask("/__ctl")["requests"]

    def requests(self):
        """Bodies of all requests so far, oldest first."""
        lines = self.wire.read_text("utf8").splitlines() if self.wire.exists() else []
        records = [json.loads(line) for line in lines]
        return [record["body"] for record in records if isinstance(record.get("body"), dict)]


class Midwatch:
    """A home with its files, and the daemon that runs on it."""

    def __init__(self, binary, out):
        self.binary, self.out = binary, out
        # Under /tmp, because the path of a Unix socket has room for 100 bytes only.
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="mw-peers-", dir="/tmp"))
        self.env = {
            "PATH": os.environ.get("PATH", ""),
            "TELEGRAM_BOT_TOKEN": TOKEN,
            "OPENAI_API_KEY": KEY,
            "RUST_BACKTRACE": "1",
        }
        self.daemon = None

    def write(self, name, text):
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf8")

    def run(self, *args):
        argv = [self.binary, "--home", str(self.home), *args]
        return subprocess.run(argv, env=self.env, check=False, capture_output=True, text=True, timeout=60)

    def json(self, *args):
        done = self.run(*args, "--json")
        if done.returncode != 0:
            raise Stuck(f"`midwatch {' '.join(args)}` exited {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def start(self):
        """Starts the daemon and waits until it takes work."""
        argv = [self.binary, "--home", str(self.home), "serve"]
        self.daemon = Child(argv, self.out / "daemon.log", self.env)

        def look():
            if not self.daemon.is_alive():
                raise Stuck(f"the daemon exited {self.daemon.process.returncode} before it was ready")
            done = self.run("status", "--json")
            return done.returncode == 0 and json.loads(done.stdout)["ready"]

        wait_for("the daemon is ready", look, 60)

    def status(self):
        return self.json("status")

    def is_idle(self):
        now = self.status()
        waiting = now["inbox"]["new"] + now["inbox"]["running"] + now["outbox"]["pending"]
        return now["turns_running"] == 0 and waiting == 0

    def rows(self, sql):
        """What stands in the store, to look at."""
        store = sqlite3.connect(f"file:{self.home}/data/midwatch.db?mode=ro", uri=True, timeout=20)
        try:
            return store.execute(sql).fetchall()
        finally:
            store.close()

    def remove(self):
        shutil.rmtree(self.home, ignore_errors=True)
