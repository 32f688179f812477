"""The other protocol, Messages: a talk with a scripted model that reasons and calls, and one with the real small model.

Both write down what they are asked; each request has to pass the vendor's own types.
"""

import json
import signal

from stage import KEY, Aimock, Midwatch, Model, Stuck, Telegram, wait_for

MAIN_TOML = """\
[model]
provider = "anthropic"
model = "{name}"
base_url = "{model}"
api_key = {{ env = "OPENAI_API_KEY" }}
context_window = 4096
max_output_tokens = 24
"""

TELEGRAM_TOML = """\
kind = "telegram"
token = {{ env = "TELEGRAM_BOT_TOKEN" }}
api_url = "{telegram}"

[[link]]
name = "home"
chat = 1
senders = [1]
allow = ["read_file", "list_files"]
time_budget_secs = 100
"""

CALLS = [
    {"type": "toolCall", "name": "read_file", "arguments": {"path": "notes/today.md"}},
    {"type": "toolCall", "name": "list_files", "arguments": {}},
]
FIXTURES = [
    {
        "match": {"userMessage": "due today", "hasToolResult": False},
        "response": {
            "reasoning": "Two calls will do.",
            "reasoningSignature": "c2VhbA==",
            "redactedThinking": ["c2VhbGVk"],
            "blocks": [{"type": "text", "text": "I look."}, *CALLS],
        },
    },
    {
        "match": {"userMessage": "due today"},
        "response": {"reasoning": "Now I know.", "reasoningSignature": "c2VhbDI=", "content": "The dentist, at two."},
    },
    {"match": {}, "response": {"content": "Hello, Ann."}},
]


class Scene:
    """A home, a Telegram, and one model."""

    def __init__(self, binary, out, name):
        out.mkdir(parents=True)
        self.name, self.out = name, out
        self.midwatch = Midwatch(binary, out)
        self.counterparts = []
        self.passed = self.failed = 0

    def check(self, name, holds, seen=""):
        self.passed, self.failed = self.passed + bool(holds), self.failed + (not holds)
        print(f"   {'ok  ' if holds else 'FAIL'} {name}" + ("" if holds else f": {seen}"))

    def joined_by(self, counterpart):
        self.counterparts.append(counterpart)
        counterpart.wait_until_up()
        return counterpart

    def begin(self, backend=None):
        self.model = self.joined_by(Model(self.out, {}, backend))
        self.telegram = self.joined_by(Telegram(self.out))
        self.midwatch.write("config/midwatch.toml", MAIN_TOML.format(name=self.name, model=self.model.url))
        self.midwatch.write("config/channels/telegram.toml", TELEGRAM_TOML.format(telegram=self.telegram.url))
        self.midwatch.write("data/workspace/notes/today.md", "- 14:00 dentist\n")
        self.midwatch.start()

    def told(self, text):
        """Says something in the chat and gives the reply to it, when nothing is under way any more."""
        print(f"       Ann  {text}")
        message_id = self.telegram.says(text)
        replies = wait_for(f"an answer to {text!r}", lambda: self.telegram.replies_after(message_id))
        wait_for("the daemon is idle", self.midwatch.is_idle)
        print(f"  midwatch  {' '.join(replies[0]['text'].split())[:100]}")
        return replies[0]["text"]

    def look_back(self):
        requests = [json.loads(line) for line in self.model.wire.read_text("utf8").splitlines()]
        requests = [request for request in requests if "path" in request]
        self.check("all went to /v1/messages", {request["path"] for request in requests} == {"/v1/messages"})
        versions = {request["headers"].get("anthropic-version") for request in requests}
        self.check("and said the protocol's version", versions == {"2023-06-01"}, versions)
        well, told = self.model.faulty_requests()
        last = (told.splitlines() or [""])[-1]
        self.check(f"every request is well-formed by the vendor's types ({last})", well, told)
        bad = [(call["method"], call["violations"]) for call in self.telegram.calls() if call["violations"]]
        self.check("0 violations in requests to Telegram", not bad, bad)
        log = (self.midwatch.out / "daemon.log").read_text("utf8", "replace")
        self.check("no key in the log", KEY not in log)

    def end(self):
        if self.midwatch.daemon:
            self.check("the daemon exits 0 on SIGTERM", self.midwatch.daemon.end() == 0)
        for counterpart in self.counterparts:
            counterpart.end(patience=5)
        self.midwatch.remove()


def reasoned(scene, program):
    """Reasoning and calls, with a restart between them and their next use."""
    aimock = scene.joined_by(Aimock(program, scene.out, FIXTURES))
    scene.begin(aimock.url)
    scene.check("a first answer", scene.told("Hello!") == "Hello, Ann.")
    scene.check("an answer after calls", scene.told("What is due today?") == "The dentist, at two.")
    done = scene.midwatch.rows("select count(*) from timeline where kind = 'call.done'")
    scene.check("both calls ran", done == [(2,)], done)
    scene.midwatch.daemon.end(signal.SIGKILL)
    scene.midwatch.start()
    scene.check("an answer after a restart", scene.told("Thank you.") == "Hello, Ann.")
    blocks = [block for message in scene.model.requests()[-1]["messages"] for block in message["content"]]
    thoughts = [block for block in blocks if "thinking" in block["type"]]
    first = [
        {"type": "redacted_thinking", "data": "c2VhbGVk"},
        {"type": "thinking", "thinking": "Two calls will do.", "signature": "c2VhbA=="},
    ]
    last = {"type": "thinking", "thinking": "Now I know.", "signature": "c2VhbDI="}
    scene.check("what was thought came back as it was", thoughts == [*first, last], thoughts)
    shown = " ".join(message["text"] for message in scene.telegram.chat())
    scene.check("and nobody was shown it", "Two calls" not in shown and "Now I know" not in shown, shown)


def real(scene, _):
    """llama.cpp's own server of the protocol; one answer is cut on its way."""
    scene.begin()
    scene.check("an answer in words", scene.told("Hello! Who are you?").strip())
    scene.model.fault(cut_after=2)
    before = scene.model.requests_seen()
    scene.check("an answer after a cut", scene.told("And what can you do?").strip())
    scene.check("the model was asked again", scene.model.requests_seen() - before == 2)
    spent = scene.midwatch.rows("select sum(json_extract(spent, '$.input_tokens')) from turns")
    scene.check("and counted what it read", spent[0][0] > 100, spent)


def play(binary, out, program):
    """Plays both, and gives how many checks passed and how many failed."""
    passed = failed = 0
    scenes = [("a scripted model that reasons", "claude-sonnet-4", reasoned), ("a real model", "smollm2-135m", real)]
    for title, name, scenery in scenes:
        print(f"\n-- Messages: {title}")
        if scenery is reasoned and not program:
            print("   LEFT OUT: there is no npm with node 20, so reasoning and calls were not tried against a server of others")
            continue
        scene = Scene(binary, out / scenery.__name__, name)
        try:
            scenery(scene, program)
            scene.look_back()
        except Stuck as stuck:
            scene.check("the talk went on to its end", False, stuck)
        finally:
            scene.end()
        passed, failed = passed + scene.passed, failed + scene.failed
    return passed, failed
