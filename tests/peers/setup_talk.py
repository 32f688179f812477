"""From nothing to the first answer, as a newcomer types it: setup, serve, link, /link in the chat, a first message.

It has counterparts of its own, so that nothing of it is seen by the long talk that follows.
"""

import shlex
import time

from stage import KEY, TOKEN, Midwatch, Model, Stuck, Telegram, wait_for


class Newcomer:
    def __init__(self, midwatch, telegram, model):
        self.midwatch, self.telegram, self.model = midwatch, telegram, model
        self.passed = self.failed = 0

    def check(self, name, holds, seen=""):
        self.passed, self.failed = self.passed + bool(holds), self.failed + (not holds)
        print(f"   {'ok  ' if holds else 'FAIL'} {name}" + ("" if holds else f": {seen}"))

    def type(self, *args):
        """A command as it is typed, with what it says."""
        print(f"\n$ midwatch {shlex.join(args)}")
        done = self.midwatch.run(*args)
        for line in (done.stdout + done.stderr).splitlines():
            print(f"  {line}".replace(str(self.midwatch.home), "HOME"))
        return done

    def told(self, text, what):
        """Says something in the chat and gives the first reply to it."""
        print(f"\n       Ann  {text}")
        message_id = self.telegram.says(text)
        replies = wait_for(what, lambda: self.telegram.replies_after(message_id))
        print(f"  midwatch  {' '.join(replies[0]['text'].split())[:160]}")
        return replies[0]["text"]

    def play(self):
        flags = ["setup", "--yes", "--provider", "openai", "--model", "smollm2-135m"]
        flags += ["--base-url", f"{self.model.url}/v1", "--api-key-env", "OPENAI_API_KEY"]
        flags += ["--telegram-token-env", "TELEGRAM_BOT_TOKEN", "--operator", "1"]
        wrong = self.midwatch.run(*flags, "--telegram-api-url", self.model.url)
        self.check("a server that is no Telegram is found out", wrong.returncode == 1, wrong.stdout + wrong.stderr)
        config = self.midwatch.home / "config"
        self.check("and nothing is written", not config.exists(), config)

        began = time.monotonic()
        done = self.type(*flags, "--telegram-api-url", self.telegram.url)
        self.check("setup is done", done.returncode == 0, done.returncode)
        print("\n$ midwatch serve")
        self.midwatch.start()
        done = self.type("link", "telegram")
        code = next((line for line in done.stdout.splitlines() if line.startswith("/link ")), "")
        linked = self.told(code, "the chat is linked")
        self.check("the chat is linked", linked.startswith("This chat is linked"), linked)
        self.told("Hello! Who are you?", "the first answer")
        print(f"\n   from `setup` to the first answer: {time.monotonic() - began:.1f} s")

        calls = self.telegram.calls()
        bad = [(call["method"], call["violations"]) for call in calls if call["violations"]]
        self.check(f"0 violations in {len(calls)} requests to Telegram", not bad, bad)
        files = sorted(path for path in config.rglob("*") if path.is_file())
        modes = {str(path.relative_to(config)): oct(path.stat().st_mode & 0o777) for path in files}
        self.check("the files are their owner's alone", set(modes.values()) == {"0o600"}, modes)
        texts = "".join(path.read_text("utf8") for path in files)
        self.check("and hold no secret", TOKEN.split(":")[1] not in texts and KEY not in texts, modes)
        doctor = self.type("doctor")
        self.check("doctor looks at all of it", "telegram" in doctor.stdout and "model" in doctor.stdout)
        code = self.midwatch.daemon.end()
        self.check("the daemon exits 0 on SIGTERM", code == 0, code)


def play(binary, out):
    """Plays it, and gives how many checks passed and how many failed."""
    print("-- from nothing to the first answer")
    out.mkdir(parents=True)
    midwatch, counterparts, newcomer = Midwatch(binary, out), [], None
    try:
        telegram, model = Telegram(out), Model(out, {})
        counterparts = [telegram, model]
        for counterpart in counterparts:
            counterpart.wait_until_up()
        newcomer = Newcomer(midwatch, telegram, model)
        newcomer.play()
    except Stuck as stuck:
        print(f"   FAIL the newcomer got an answer: {stuck}")
        return (newcomer.passed if newcomer else 0), (newcomer.failed if newcomer else 0) + 1
    finally:
        if midwatch.daemon:
            midwatch.daemon.end()
        for counterpart in counterparts:
            counterpart.end(patience=5)
        midwatch.remove()
    return newcomer.passed, newcomer.failed
