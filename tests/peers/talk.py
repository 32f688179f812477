#!/usr/bin/env python3
"""A talk of ten turns with tool calls, a restart and faults; started by `run`.

The answers come from a real, very small model, so nothing here looks at their wording: only at who answered whom, in
which order, how often, through which calls, and in which requests.
"""

import argparse
import itertools
import pathlib
import shutil
import signal
import sys
import textwrap
import time
import traceback

import messages_talk
import setup_talk
from stage import EVE, KEY, TOKEN, Midwatch, Model, Stuck, Telegram, wait_for

MAIN_TOML = """\
[model]
provider = "openai"
model = "smollm2-135m"
base_url = "{model}/v1"
api_key = {{ env = "OPENAI_API_KEY" }}
context_window = 4096
max_output_tokens = 64

[workspace]
path = "workspace"
"""

TELEGRAM_TOML = """\
kind = "telegram"
token = {{ env = "TELEGRAM_BOT_TOKEN" }}
api_url = "{telegram}"
poll_timeout_secs = 20

[[link]]
name = "home"
chat = 1
senders = [1]
allow = ["read_file", "list_files", "search_files"]
time_budget_secs = 300
"""

WORKSPACE = {
    "notes/today.md": "# Today\n\n- 09:00 water the garden\n- 14:00 dentist\n",
    "notes/ideas.md": "A bench for the garden.\n",
    "shopping.txt": "bread\napples\nlamp oil\n",
}
OFFERS = {
    "read_file.path": list(WORKSPACE),
    "list_files.path": [".", "notes"],
    "search_files.path": [".", "notes"],
    "search_files.pattern": ["garden", "bread"],
}


class Talk:
    def __init__(self, midwatch, telegram, model):
        self.midwatch, self.telegram, self.model = midwatch, telegram, model
        self.passed = self.failed = 0
        self.said = []  # (message id, text) of everything Ann wrote
        self.resent = 0
        self.seen = 0  # last message of the session that was printed

    def check(self, name, holds, seen=""):
        self.passed, self.failed = self.passed + bool(holds), self.failed + (not holds)
        print(f"   {'ok  ' if holds else 'FAIL'} {name}" + ("" if holds else f": {seen}"))

    # What people see

    def show(self, who, text):
        lines = textwrap.wrap(" ".join(text.split()), 96) or ["(nothing)"]
        rest = [f"… {len(lines) - 4} more lines"] if len(lines) > 4 else []
        for name, line in zip(itertools.chain([who], itertools.repeat("")), lines[:4] + rest):
            print(f"{name:>10}  {line}")

    def show_calls(self):
        """The calls and their results since the last look."""
        sessions = [row for row in self.midwatch.json("sessions")["sessions"] if row["thread"].startswith("telegram")]
        if not sessions:
            return
        messages = self.midwatch.json("sessions", "show", sessions[0]["id"])["messages"]
        for message in messages:
            if message["seq"] <= self.seen:
                continue
            self.seen = message["seq"]
            for block in message["blocks"]:
                if block["type"] == "tool_call":
                    self.show(block["call"], f"{block['name']} {block['arguments']}")
                elif block["type"] == "tool_result":
                    self.show("", f"{'failed' if block['is_error'] else 'result'}: {block['text'][:160]}")

    # The steps

    def say(self, text):
        message_id = self.telegram.says(text)
        self.said.append((message_id, text))
        self.show("Ann", text)
        return message_id

    def answered(self, message_id):
        """Waits until a message is answered and nothing is under way; gives its replies."""
        wait_for(f"message {message_id} is answered", lambda: self.telegram.replies_after(message_id))
        wait_for("the daemon is idle", self.midwatch.is_idle)
        replies = self.telegram.replies_after(message_id)
        self.show_calls()
        for reply in replies:
            self.show("midwatch", reply["text"])
        return replies

    def turn(self, number, text):
        print(f"\n-- turn {number}")
        replies = self.answered(self.say(text))
        self.check(f"turn {number} is answered", len(replies) >= 1)
        return replies

    def command(self, text):
        print(f"\n-- {text}")
        before = self.model.requests_seen()
        replies = self.answered(self.say(text))
        self.check(
            f"{text} is answered once, without the model",
            len(replies) == 1 and self.model.requests_seen() == before,
            replies,
        )

    def timeline(self, kind):
        return self.midwatch.rows(f"select turn, call, detail from timeline where kind = '{kind}' order by id")

    # The scenes

    def play(self):
        self.check("the configuration is well", self.midwatch.run("check").returncode == 0)
        self.midwatch.start()
        self.five_turns()
        self.killed_between_turns()
        self.killed_within_a_turn()
        self.two_at_once()
        self.a_stranger()
        self.asked_to_wait()
        self.a_lost_answer()
        self.a_cut_stream()
        self.commands()
        self.stop()
        self.look_back()

    def five_turns(self):
        self.turn(1, "Hello! Who are you?")
        self.turn(2, "Which files are in the workspace?")
        self.turn(3, "Read notes/today.md and tell me what is due.")
        self.turn(4, "Search the files for the word garden.")
        self.turn(5, "Read shopping.txt: what do I have to buy?")
        self.check("tool calls really ran", len(self.timeline("call.done")) >= 1, self.timeline("call.refused"))

    def killed_between_turns(self):
        print("\n-- kill -9, start again")
        self.check("the daemon died of the kill", self.midwatch.daemon.end(signal.SIGKILL) == -signal.SIGKILL)
        seen = len(self.model.requests())
        self.midwatch.start()
        self.turn(6, "What did I ask you before?")
        first = self.model.requests()[seen]
        asked = [message["content"] for message in first["messages"] if message["role"] == "user"]
        earlier = self.said[-2][1]
        self.check(
            "after the restart the request holds the turn before it", any(earlier in text for text in asked), asked
        )
        self.check(
            "and calls with their results", any(message["role"] == "tool" for message in first["messages"]), asked
        )

    def killed_within_a_turn(self):
        print("\n-- turn 7: kill -9 while the model is at work, start again")
        self.model.fault(delay=3)
        seen = self.model.requests_seen()
        message_id = self.say("List the files in notes.")
        wait_for("the model is asked", lambda: self.model.requests_seen() > seen)
        self.midwatch.daemon.end(signal.SIGKILL)
        self.check("nothing was answered before the kill", not self.telegram.replies_after(message_id))
        self.midwatch.start()
        replies = self.answered(message_id)
        self.check("turn 7 is answered after the restart", len(replies) >= 1)
        self.check(
            "and taken up again, not begun twice",
            self.midwatch.rows(f"select count(distinct turn), count(*) from inbox where message_key = '{message_id}'")
            == [(1, 1)],
        )

    def two_at_once(self):
        print("\n-- turns 8 and 9: two messages at once")
        first, second = self.say("Read notes/ideas.md."), self.say("And thank you.")
        wait_for("both are answered", lambda: len(self.telegram.replies_after(second)) >= 2)
        replies = self.answered(first)
        self.check("turns 8 and 9 are answered", len(replies) >= 2, replies)

    def a_stranger(self):
        print("\n-- a stranger")
        before = self.model.requests_seen()
        self.telegram.says("Hello, read me the notes.", EVE)
        self.show("Eve", "Hello, read me the notes.")
        # A later message of Ann's has been through the same queue, so silence means silence.
        self.turn(10, "Is anybody else here?")
        self.check("a stranger gets no reply", not self.telegram.replies_after(0, EVE))
        asked = str(self.model.requests()[before:])
        self.check("and no request holds a stranger's words", "read me the notes" not in asked)
        unlinked = self.midwatch.status()["unlinked"]
        self.check("but `status` names the chat", any("2" in str(chat.get("chat", "")) for chat in unlinked), unlinked)

    def asked_to_wait(self):
        print("\n-- fault: sendMessage is answered 429, retry after 1 s")
        self.telegram.fault(method="sendMessage", status=429, retry_after=1)
        before = len(self.telegram.calls("sendmessage"))
        replies = self.answered(self.say("Say hello once more."))
        sends = self.telegram.calls("sendmessage")[before:]
        self.check(
            "the wait is kept",
            len(sends) >= 2 and sends[0]["status"] == 429 and sends[1]["t"] - sends[0]["t"] >= 1,
            sends,
        )
        self.check("then it is sent once", len(replies) == len(sends) - 1, replies)

    def a_lost_answer(self):
        print("\n-- fault: the answer to sendMessage is lost")
        self.telegram.fault(method="sendMessage", drop="after")
        before = len(self.telegram.calls("sendmessage"))
        message_id = self.say("Say something short.")
        self.answered(message_id)
        status = self.midwatch.status()
        self.check("the reply is uncertain in `status`", status["outbox"]["uncertain"] == 1, status["outbox"])
        doubt = [reply for reply in status["replies"] if reply["state"] == "uncertain"]
        self.check("and listed with its id", len(doubt) == 1, status["replies"])
        self.answered(self.say("Are you still there?"))
        sends = self.telegram.calls("sendmessage")[before:]
        shown = self.telegram.replies_after(message_id)
        self.check("it is not sent again by itself", len(sends) == len(shown), (sends, shown))
        print("\n-- `replies resend`")
        seen = self.telegram.chat()[-1]["message_id"]
        done = self.midwatch.run("replies", "resend", doubt[0]["id"])
        replies = self.answered(seen)
        self.check(
            "sent again by a person, once and labelled",
            done.returncode == 0 and len(replies) == 1 and replies[0]["text"].startswith("(sent again)"),
            replies,
        )
        self.check("and no longer uncertain", self.midwatch.status()["outbox"]["uncertain"] == 0)
        self.resent = 1

    def a_cut_stream(self):
        print("\n-- fault: the model's stream is cut")
        self.model.fault(cut_after=1)
        before = self.model.requests_seen()
        replies = self.answered(self.say("Read shopping.txt once more."))
        self.check(
            "the model is asked again", self.model.requests_seen() - before >= 2 and self.timeline("model.retried")
        )
        self.check("and the message answered", len(replies) >= 1)

    def commands(self):
        self.command("/help")
        self.command("/status")
        self.command("/new")
        print("\n-- after /new")
        seen = len(self.model.requests())
        self.answered(self.say("Good morning."))
        users = [message for message in self.model.requests()[seen]["messages"] if message["role"] != "system"]
        self.check(
            "after /new a request holds nothing of before", [message["role"] for message in users] == ["user"], users
        )

    def stop(self):
        print("\n-- SIGTERM")
        code = self.midwatch.daemon.end()
        self.check("the daemon exits 0 on SIGTERM", code == 0, code)

    def look_back(self):
        """All of it at once: nothing lost, nothing twice, everything by the rules of others."""
        print("\n-- looking back")
        chat = self.telegram.chat()
        texts = {message["message_id"]: message["text"] for message in chat}
        inbox = self.midwatch.rows("select message_key, state, turn from inbox where chat = '1' order by id")
        self.check(
            "every message is in the store, in order",
            [int(key) for key, _, _ in inbox] == [key for key, _ in self.said],
            inbox,
        )
        self.check("and done", all(state == "done" for _, state, _ in inbox), inbox)
        outbox = self.midwatch.rows("select platform_id, state, turn from outbox where chat = '1' order by id")
        self.check("every reply is sent", all(state == "sent" for _, state, _ in outbox), outbox)
        shown = [message["message_id"] for message in chat if message["from"]["is_bot"]]
        self.check(
            "none stands in the chat twice, but for the one resent",
            len(shown) == len(outbox) + self.resent,
            (shown, outbox),
        )
        plain = [int(key) for key, _, _ in outbox if not texts[int(key)].startswith("(sent again)")]
        self.check("replies stand in the order of their turns", plain == sorted(set(plain)), outbox)
        answered = {turn for _, _, turn in outbox}
        self.check("each turn has its reply", all(turn in answered for _, _, turn in inbox if turn is not None), inbox)
        open_turns = self.midwatch.rows("select id, state from turns where state <> 'done'")
        self.check("no turn is open or set aside", not open_turns, open_turns)

        calls = self.telegram.calls()
        bad = [(call["method"], call["violations"], call.get("params")) for call in calls if call["violations"]]
        self.check(f"0 violations in {len(calls)} requests to Telegram", not bad, bad)
        # A killed daemon's last poll is answered 409 when its successor polls; nobody hears that.
        deaf = [call for call in calls if call["method"] == "getupdates" and call.get("status") == 409]
        refused = [
            call for call in calls if call.get("status", 200) >= 400 and "fault" not in call and call not in deaf
        ]
        self.check("no request to Telegram was refused", not refused and len(deaf) <= 2, refused or deaf)
        self.check("all faults were played", not self.telegram.faults_left() and not self.model.ask("/__ctl")["faults"])
        well, told = self.model.faulty_requests()
        last = (told.splitlines() or [""])[-1]
        self.check(f"every request to the model is well-formed by the vendor's types ({last})", well, told)
        for path in [self.midwatch.out / "daemon.log", *(self.midwatch.home / "state").rglob("*.log")]:
            log = path.read_text("utf8", "replace")
            self.check(f"no secret in {path.name}", TOKEN.split(":")[1] not in log and KEY not in log)


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--midwatch", required=True, help="the binary")
    args.add_argument("--aimock", help="a scripted model that speaks Messages; without it that talk is left out")
    args.add_argument("--out", required=True, type=pathlib.Path, help="where logs and wires are kept")
    args = args.parse_args()
    # Asked to end, it ends its children first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    began = time.monotonic()
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    new = setup_talk.play(args.midwatch, args.out / "setup")
    other = messages_talk.play(args.midwatch, args.out / "messages", args.aimock)
    print("\n-- the long talk")
    midwatch = Midwatch(args.midwatch, args.out)
    counterparts = []
    talk, broken = None, 0
    try:
        telegram, model = Telegram(args.out), Model(args.out, OFFERS)
        counterparts = [telegram, model]
        for counterpart in counterparts:
            counterpart.wait_until_up()
        midwatch.write("config/midwatch.toml", MAIN_TOML.format(model=model.url))
        midwatch.write("config/channels/telegram.toml", TELEGRAM_TOML.format(telegram=telegram.url))
        for name, text in WORKSPACE.items():
            midwatch.write(f"data/workspace/{name}", text)
        talk = Talk(midwatch, telegram, model)
        talk.play()
    except Exception as error:  # whatever broke, the count and the logs are wanted
        broken = 1
        print(f"   FAIL the talk went on to its end: {error}")
        if not isinstance(error, Stuck):
            traceback.print_exc()
    finally:
        if midwatch.daemon:
            midwatch.daemon.end()
        for counterpart in counterparts:
            counterpart.end(patience=5)
    passed, failed = (talk.passed, talk.failed + broken) if talk else (0, 1)
    passed, failed = passed + new[0] + other[0], failed + new[1] + other[1]
    if failed:
        if midwatch.daemon:
            print(f"\n-- the end of the daemon's log ({midwatch.daemon.log})\n{midwatch.daemon.tail()}")
        print(f"-- the home is kept: {midwatch.home}")
    else:
        midwatch.remove()
    print(f"\n{time.monotonic() - began:.0f} s\n{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
