#!/usr/bin/env python3
"""A strict Telegram Bot API on loopback.

Every request is validated with aiogram's models, which are generated from Telegram's own documentation; so is every
Message and Update that is sent from here. What a request holds that the documentation does not know is a violation.

    tg_fake.py --port 0 --token 123456:TESTTOKEN [--log wire.jsonl]        prints its address when it is up

Bot side: http://127.0.0.1:PORT/bot<token>/<method> (any case; query, form, JSON, multipart), /file/bot<token>/<path>.
As the real server has it: long polling; updates stay until a later offset confirms them; allowed_updates; negative
offset; 409 to the older of two pollers and while a webhook is set; 401 and 404; limits of 4096 and 1024; errors of HTML
and MarkdownV2; 'message is not modified'; 'message to edit not found'; uploads get a file_id, getFile refuses 20 MB.

User side (POST, JSON):
    /__user/send   {"text":"hi","chat":{"id":1,"type":"private","first_name":"A"},"from":{...},"reply_to":17}
    /__user/file   {"name":"a.txt","data_b64":"...","mime":"text/plain","caption":"c","kind":"document|photo|voice"}
    /__user/press  {"message_id":17,"chat_id":1,"data":"y1"}      a button that the bot really sent -> callback_query
    /__user/edit   {"message_id":3,"chat_id":1,"text":"new"}      -> edited_message
    /__user/update {raw Update}                                   as it is
Looks (GET): /__log, all requests with their "violations"; /__chat?id=1, the chat as a person sees it; /__pending.
Faults (POST /__ctl): {"method":"sendMessage","count":1} with one of "status":429,"retry_after":2 | "status":502 |
    "delay":5 | "drop":"before" | "drop":"after" (does the work, then loses the answer). GET shows them, DELETE clears.
"""

import argparse, asyncio, base64, inspect, json, re, time, typing
from html.parser import HTMLParser
from aiohttp import web
import aiogram, aiogram.methods as M
from aiogram.types import Message, Update
from pydantic import BaseModel, ValidationError

a = argparse.ArgumentParser()
a.add_argument("--port", type=int, default=0)
a.add_argument("--token", action="append")
a.add_argument("--log")
A = a.parse_args()
TOKENS = A.token or ["123456:TESTTOKEN"]
METHODS = {
    c.__api_method__.lower(): c
    for _, c in inspect.getmembers(M, inspect.isclass)
    if isinstance(getattr(c, "__api_method__", None), str)
}


class Bad(Exception):
    def __init__(s, code, desc, **params):
        s.code, s.desc, s.params = code, desc, params


class Bot:
    def __init__(s, tok):
        s.id = int(tok.split(":")[0])
        s.me = {"id": s.id, "is_bot": True, "first_name": "Midwatch", "username": "midwatch_bot"}
        s.updates, s.next_update, s.next_msg, s.chats, s.files, s.webhook, s.commands = (
            [],
            int(time.time()) % 100000000 * 10 + 1,
            {},
            {},
            {},
            "",
            [],
        )
        s.event, s.poller, s.allowed, s.cbq = asyncio.Event(), None, None, {}

    def push(s, kind, obj):
        u = {"update_id": s.next_update, kind: obj}
        Update.model_validate(u)
        s.next_update += 1
        s.updates.append(u)
        s.event.set()
        return u

    def mid(s, chat):
        s.next_msg[chat] = s.next_msg.get(chat, 0) + 1
        return s.next_msg[chat]

    def store(s, m):
        Message.model_validate(m)
        s.chats.setdefault(m["chat"]["id"], {})[m["message_id"]] = m
        return m


BOTS, LOG, FAULTS = {}, [], []
logf = open(A.log, "a", buffering=1) if A.log else None
u16 = lambda t: len(t.encode("utf-16-le")) // 2


class H(HTMLParser):
    OK = {
        "b": "bold",
        "strong": "bold",
        "i": "italic",
        "em": "italic",
        "u": "underline",
        "ins": "underline",
        "s": "strikethrough",
        "strike": "strikethrough",
        "del": "strikethrough",
        "code": "code",
        "pre": "pre",
        "a": "text_link",
        "blockquote": "blockquote",
        "tg-spoiler": "spoiler",
        "span": "spoiler",
        "tg-emoji": "custom_emoji",
    }

    def __init__(s):
        super().__init__(convert_charrefs=True)
        s.t, s.st, s.e = "", [], []

    def handle_starttag(s, tag, at):
        if tag not in s.OK:
            raise Bad(
                400,
                f'Bad Request: can\'t parse entities: Unsupported start tag "{tag}" at byte offset {len(s.t.encode())}',
            )
        s.st.append((tag, u16(s.t), dict(at)))

    def handle_endtag(s, tag):
        if not s.st or s.st[-1][0] != tag:
            raise Bad(
                400,
                f'Bad Request: can\'t parse entities: Unmatched end tag at byte offset {len(s.t.encode())}, expected "</{s.st[-1][0] if s.st else ""}>", found "</{tag}>"',
            )
        t, o, at = s.st.pop()
        n = u16(s.t) - o
        if n:
            s.e.append(
                {
                    "type": s.OK[t],
                    "offset": o,
                    "length": n,
                    **({"url": at.get("href", "")} if t == "a" else {}),
                    **({"custom_emoji_id": at.get("emoji-id", "")} if t == "tg-emoji" else {}),
                }
            )

    def handle_data(s, d):
        s.t += d


NAME = {"*": "Bold", "_": "Italic", "__": "Underline", "~": "Strikethrough", "||": "Spoiler", "`": "Code", "```": "Pre"}


def mdv2(t):
    out, st, i, ents = "", [], 0, []
    while i < len(t):
        c = t[i]
        code = st and st[-1][0] in ("`", "```")
        if c == "\\" and i + 1 < len(t) and ord(t[i + 1]) < 127:
            out += t[i + 1]
            i += 2
            continue
        tok = next((k for k in ("```", "||", "__", "`", "*", "_", "~") if t.startswith(k, i)), None)
        if code and tok != st[-1][0]:
            out += c
            i += 1
            continue
        if tok:
            if st and st[-1][0] == tok:
                k, o = st.pop()
                ents.append({"type": NAME[k].lower(), "offset": o, "length": u16(out) - o})
            else:
                st.append((tok, u16(out)))
            i += len(tok)
            continue
        m = re.compile(r"!?\[((?:\\.|[^\]\\])*)\]\(((?:\\.|[^)\\])*)\)").match(t, i)
        if m:
            lab = re.sub(r"\\(.)", r"\1", m[1])
            ents.append({"type": "text_link", "offset": u16(out), "length": u16(lab), "url": m[2]})
            out += lab
            i = m.end()
            continue
        if c == ">" and (i == 0 or t[i - 1] == "\n"):
            i += 1
            continue
        if c in "[]()>#+-=|{}.!":
            raise Bad(
                400,
                f"Bad Request: can't parse entities: Character '{c}' is reserved and must be escaped with the preceding '\\'",
            )
        out += c
        i += 1
    if st:
        raise Bad(
            400,
            f"Bad Request: can't parse entities: Can't find end of {NAME[st[-1][0]]} entity at byte offset {len(t.encode())}",
        )
    return out, [e for e in ents if e["length"]]


def parse(text, mode, limit, what):
    ents = None
    mode = (mode or "").lower()
    if mode == "html":
        h = H()
        h.feed(text)
        h.close()
        text, ents = h.t, h.e
        if h.st:
            raise Bad(
                400,
                f"Bad Request: can't parse entities: Can't find end tag corresponding to start tag \"{h.st[-1][0]}\"",
            )
    elif mode == "markdownv2":
        text, ents = mdv2(text)
    elif mode not in ("", "markdown"):
        raise Bad(400, "Bad Request: unsupported parse_mode")
    if what == "text" and not text.strip():
        raise Bad(400, "Bad Request: message text is empty")
    if u16(text) > limit:
        raise Bad(
            400, "Bad Request: message is too long" if what == "text" else "Bad Request: message caption is too long"
        )
    return text, ents


def extras(o, at=""):
    if isinstance(o, BaseModel):
        for k in o.model_extra or {}:
            yield f"{at}{k}"
        for n in type(o).model_fields:
            yield from extras(getattr(o, n, None), f"{at}{n}.")
    elif isinstance(o, list):
        for i, x in enumerate(o):
            yield from extras(x, f"{at}{i}.")


def chat_of(bot, cid):
    c = bot.chats.get(("info", str(cid)))
    if c:
        return c
    try:
        return (
            {"id": int(cid), "type": "private", "first_name": "User"}
            if int(cid) > 0
            else {"id": int(cid), "type": "supergroup", "title": "Group"}
        )
    except (TypeError, ValueError):
        raise Bad(400, "Bad Request: chat not found")


def out_message(bot, p, **body):
    chat = chat_of(bot, p.get("chat_id"))
    m = {"message_id": bot.mid(chat["id"]), "from": bot.me, "chat": chat, "date": int(time.time()), **body}
    rp = p.get("reply_parameters") or (
        {"message_id": p["reply_to_message_id"]} if p.get("reply_to_message_id") else None
    )
    if rp:
        r = bot.chats.get(chat["id"], {}).get(int(rp["message_id"]))
        if r:
            m["reply_to_message"] = {k: v for k, v in r.items() if k != "reply_to_message"}
        elif not rp.get("allow_sending_without_reply"):
            raise Bad(400, "Bad Request: message to be replied not found")
    if p.get("message_thread_id"):
        m["message_thread_id"] = int(p["message_thread_id"])
    markup(p, m)
    return bot.store(m)


def markup(p, m):
    rm = p.get("reply_markup")
    if rm and "inline_keyboard" in rm:
        for row in rm["inline_keyboard"]:
            for b in row:
                if len((b.get("callback_data") or "").encode()) > 64:
                    raise Bad(400, "Bad Request: BUTTON_DATA_INVALID")
        m["reply_markup"] = rm
    else:
        m.pop("reply_markup", None)


def find(bot, p, what):
    m = bot.chats.get(chat_of(bot, p.get("chat_id"))["id"], {}).get(int(p.get("message_id") or 0))
    if not m:
        raise Bad(400, f"Bad Request: message to {what} not found")
    return m


def media(bot, p, kind, files):
    v = p.get(kind)
    up = files.get(kind) or (files.get(v[9:]) if isinstance(v, str) and v.startswith("attach://") else None)
    if up:
        fid = f"AgAC{kind}{len(bot.files)}"
        bot.files[fid] = {"name": up[0], "data": up[1], "mime": up[2], "path": f"{kind}s/file_{len(bot.files)}"}
    elif isinstance(v, str) and v in bot.files:
        fid = v
    else:
        raise Bad(400, "Bad Request: wrong file identifier/HTTP URL specified")
    f = bot.files[fid]
    base = {"file_id": fid, "file_unique_id": "u" + fid, "file_size": len(f["data"])}
    if kind == "photo":
        return [{**base, "width": 90, "height": 90}]
    if kind in ("voice", "audio"):
        return {**base, "duration": 1, "mime_type": f["mime"]}
    return {**base, "file_name": f["name"], "mime_type": f["mime"]}


async def get_updates(bot, p):
    if bot.webhook:
        raise Bad(
            409,
            "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first",
        )
    if bot.poller and not bot.poller.done():
        bot.poller.set_result("conflict")
    mine = bot.poller = asyncio.get_running_loop().create_future()
    off, lim, to = (
        int(p.get("offset") or 0),
        max(1, min(100, int(p.get("limit") or 100))),
        min(50, int(p.get("timeout") or 0)),
    )
    if p.get("allowed_updates") is not None:
        bot.allowed = p["allowed_updates"] or None
    if off > 0:
        bot.updates = [u for u in bot.updates if u["update_id"] >= off]
    elif off < 0:
        bot.updates = bot.updates[off:]
    end = time.time() + to
    while True:
        if mine.done():
            raise Bad(
                409, "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
            )
        if bot.allowed:
            bot.updates = [u for u in bot.updates if any(k in bot.allowed for k in u)]
        if bot.updates or time.time() >= end:
            return bot.updates[:lim]
        bot.event.clear()
        w = asyncio.ensure_future(bot.event.wait())
        await asyncio.wait([w, mine], timeout=max(0, end - time.time()), return_when=asyncio.FIRST_COMPLETED)
        w.cancel()


async def call(bot, name, p, files):
    if name == "getupdates":
        return await get_updates(bot, p)
    if name == "getme":
        return {
            **bot.me,
            "can_join_groups": True,
            "can_read_all_group_messages": False,
            "supports_inline_queries": False,
            "can_connect_to_business": False,
            "has_main_web_app": False,
        }
    if name == "getwebhookinfo":
        return {"url": bot.webhook, "has_custom_certificate": False, "pending_update_count": len(bot.updates)}
    if name == "setwebhook":
        bot.webhook = p.get("url", "")
        return True
    if name == "deletewebhook":
        bot.webhook = ""
        if str(p.get("drop_pending_updates")).lower() == "true":
            bot.updates.clear()
        return True
    if name == "setmycommands":
        bot.commands = p["commands"]
        return True
    if name == "getmycommands":
        return bot.commands
    if name == "sendmessage":
        t, e = parse(p["text"], p.get("parse_mode"), 4096, "text")
        return out_message(bot, p, text=t, **({"entities": e} if e else {}))
    if name in ("senddocument", "sendphoto", "sendvoice", "sendaudio", "sendvideo", "sendanimation"):
        k = name[4:]
        body = {k: media(bot, p, k, files)}
        if p.get("caption"):
            body["caption"], e = parse(p["caption"], p.get("parse_mode"), 1024, "caption")
        return out_message(bot, p, **body)
    if name in ("editmessagetext", "editmessagereplymarkup", "editmessagecaption"):
        m = find(bot, p, "edit")
        old = json.dumps([m.get("text"), m.get("caption"), m.get("reply_markup")], sort_keys=True)
        n = dict(m)
        if m["from"]["id"] != bot.id:
            raise Bad(400, "Bad Request: message can't be edited")
        if name == "editmessagetext":
            n["text"], e = parse(p["text"], p.get("parse_mode"), 4096, "text")
            n.pop("entities", None)
            if e:
                n["entities"] = e
        if name == "editmessagecaption":
            n["caption"], _ = parse(p.get("caption") or "", p.get("parse_mode"), 1024, "caption")
        markup(p, n)
        if json.dumps([n.get("text"), n.get("caption"), n.get("reply_markup")], sort_keys=True) == old:
            raise Bad(
                400,
                "Bad Request: message is not modified: specified new message content and reply markup are exactly the same as a current content and reply markup of the message",
            )
        n["edit_date"] = int(time.time())
        return bot.store(n)
    if name == "deletemessage":
        m = find(bot, p, "delete")
        del bot.chats[m["chat"]["id"]][m["message_id"]]
        return True
    if name == "answercallbackquery":
        if p["callback_query_id"] not in bot.cbq:
            raise Bad(400, "Bad Request: query is too old and response timeout expired or query ID is invalid")
        bot.cbq[p["callback_query_id"]] = p
        return True
    if name == "getfile":
        f = bot.files.get(p["file_id"])
        if not f:
            raise Bad(400, "Bad Request: wrong file_id or the file is temporarily unavailable")
        if len(f["data"]) > 20 << 20:
            raise Bad(400, "Bad Request: file is too big")
        return {
            "file_id": p["file_id"],
            "file_unique_id": "u" + p["file_id"],
            "file_size": len(f["data"]),
            "file_path": f["path"],
        }
    if name == "getchat":
        return {
            **chat_of(bot, p["chat_id"]),
            "accent_color_id": 0,
            "max_reaction_count": 11,
            "accepted_gift_types": {
                "unlimited_gifts": False,
                "limited_gifts": False,
                "unique_gifts": False,
                "premium_subscription": False,
                "gifts_from_channels": False,
            },
        }
    if name in ("setmessagereaction",):
        find(bot, p, "react")
        return True
    ret = METHODS[name].__returning__
    if ret is bool or bool in typing.get_args(ret):
        chat_of(bot, p["chat_id"]) if "chat_id" in p else None
        return True
    raise Bad(501, f"{name} is validated here but not simulated")


async def params(req):
    p, files = dict(req.rel_url.query), {}
    ct = req.content_type
    if req.method == "POST" and req.can_read_body:
        if ct == "application/json":
            p.update(await req.json())
        else:
            for k, v in (await req.post()).items():
                if isinstance(v, web.FileField):
                    files[k] = (v.filename, v.file.read(), v.content_type)
                else:
                    p[k] = v
    return p, files


async def api(req):
    tok, name = req.match_info["tok"], req.match_info["method"].lower()
    rec = {"t": time.time(), "method": name, "violations": []}
    LOG.append(rec)

    def reply(status, body):
        rec["status"], rec["answer"] = status, body
        logf and logf.write(json.dumps(rec, default=str) + "\n")
        return web.json_response(body, status=status)

    if tok not in TOKENS:
        return reply(401, {"ok": False, "error_code": 401, "description": "Unauthorized"})
    if name not in METHODS:
        return reply(404, {"ok": False, "error_code": 404, "description": "Not Found"})
    bot = BOTS.setdefault(tok, Bot(tok))
    cls = METHODS[name]
    f = next((f for f in FAULTS if f.get("method", "").lower() in ("", name)), None)
    if f:
        f["count"] = f.get("count", 1) - 1
        if f["count"] <= 0:
            FAULTS.remove(f)
        rec["fault"] = {k: v for k, v in f.items() if k != "count"}
        if f.get("delay"):
            await asyncio.sleep(f["delay"])
        if f.get("drop") == "before":
            req.transport.abort()
            return web.Response()
        if f.get("status") == 429:
            return reply(
                429,
                {
                    "ok": False,
                    "error_code": 429,
                    "description": f"Too Many Requests: retry after {f.get('retry_after', 1)}",
                    "parameters": {"retry_after": f.get("retry_after", 1)},
                },
            )
        if f.get("status"):
            return web.Response(
                status=f["status"], text="<html><body>Bad Gateway</body></html>", content_type="text/html"
            )
    try:
        p, files = await params(req)
        rec["params"] = p
        rec["files"] = {k: (v[0], len(v[1])) for k, v in files.items()}
        fields = {(v.alias or k): v.annotation for k, v in cls.model_fields.items()}
        clean = {}
        for k, v in p.items():
            if k not in fields:
                rec["violations"].append(f"unknown parameter {k}")
                continue
            if isinstance(v, str) and v[:1] in ("{", "[") and fields[k] not in (str, typing.Optional[str]):
                try:
                    v = json.loads(v)
                except ValueError:
                    rec["violations"].append(f"{k}: not JSON")
            clean[k] = v
        try:
            rec["violations"] += [
                f"unknown field {x}"
                for x in extras(cls.model_validate({**clean, **{k: "attach" for k in files if k in fields}}))
            ]
        except ValidationError as e:
            rec["violations"] += sorted(
                {f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in e.errors(include_url=False)}
            )[:6]
            miss = next((str(x["loc"][0]) for x in e.errors() if x["type"] == "missing"), None)
            raise Bad(400, f"Bad Request: {miss} is empty" if miss else f"Bad Request: {rec['violations'][0]}")
        res = await call(bot, name, clean, files)
    except Bad as e:
        return reply(
            e.code,
            {
                "ok": False,
                "error_code": e.code,
                "description": e.desc,
                **({"parameters": e.params} if e.params else {}),
            },
        )
    if f and f.get("drop") == "after":
        rec["answer"] = "lost"
        req.transport.abort()
        return web.Response()
    return reply(200, {"ok": True, "result": res})


async def download(req):
    bot = BOTS.get(req.match_info["tok"])
    f = next((f for f in bot.files.values() if f["path"] == req.match_info["path"]), None) if bot else None
    return web.Response(body=f["data"], content_type="application/octet-stream") if f else web.Response(status=404)


async def user(req):
    j = await req.json()
    bot = BOTS.setdefault(j.get("token", TOKENS[0]), Bot(j.get("token", TOKENS[0])))
    op = req.match_info["op"]
    fr = j.get("from") or {"id": 1, "is_bot": False, "first_name": "Ann", "username": "ann", "language_code": "en"}
    chat = j.get("chat") or {"id": j.get("chat_id", 1), "type": "private", "first_name": "Ann", "username": "ann"}
    if op == "update":
        j.pop("token", None)
        ((kind, obj),) = [(k, v) for k, v in j.items() if k != "update_id"]
        return web.json_response(bot.push(kind, obj))
    if op in ("send", "file"):
        bot.chats[("info", str(chat["id"]))] = chat
        m = {"message_id": bot.mid(chat["id"]), "from": fr, "chat": chat, "date": int(time.time())}
        if j.get("reply_to"):
            m["reply_to_message"] = bot.chats[chat["id"]][j["reply_to"]]
        if op == "send":
            m["text"] = j["text"]
            c = re.match(r"/[A-Za-z0-9_]{1,32}(@\w+)?", j["text"])
            if c:
                m["entities"] = [{"type": "bot_command", "offset": 0, "length": u16(c[0])}]
            if j.get("entities"):
                m["entities"] = j["entities"]
        else:
            k = j.get("kind", "document")
            m[k] = media(
                bot, {}, k, {k: (j["name"], base64.b64decode(j["data_b64"]), j.get("mime", "application/octet-stream"))}
            )
            if j.get("caption"):
                m["caption"] = j["caption"]
        bot.store(m)
        return web.json_response(bot.push("message", m))
    m = bot.chats[chat["id"]][j["message_id"]]
    if op == "edit":
        m = bot.store({**m, "text": j["text"], "edit_date": int(time.time())})
        return web.json_response(bot.push("edited_message", m))
    if op == "press":
        if not any(
            b.get("callback_data") == j["data"]
            for row in m.get("reply_markup", {}).get("inline_keyboard", [])
            for b in row
        ):
            return web.json_response({"error": "no such button"}, status=400)
        q = str(4 * 10**17 + len(bot.cbq))
        bot.cbq[q] = None
        return web.json_response(
            bot.push("callback_query", {"id": q, "from": fr, "message": m, "chat_instance": "77", "data": j["data"]})
        )


async def look(req):
    b = BOTS.get(TOKENS[0])
    w = req.path
    if w == "/__log":
        return web.json_response(LOG)
    if w == "/__pending":
        return web.json_response(b.updates if b else [])
    if w == "/__chat":
        return web.json_response(
            sorted((b.chats.get(int(req.query.get("id", 1)), {}) if b else {}).values(), key=lambda m: m["message_id"])
        )
    if req.method == "DELETE":
        FAULTS.clear()
    if req.method == "POST":
        j = await req.json()
        FAULTS.extend(j if isinstance(j, list) else [j])
    return web.json_response(FAULTS)


async def main():
    app = web.Application(client_max_size=60 << 20)
    r = app.router
    r.add_route("*", "/bot{tok:[^/]+}/{method}", api)
    r.add_get("/file/bot{tok:[^/]+}/{path:.+}", download)
    r.add_post("/__user/{op}", user)
    for w in ("/__log", "/__pending", "/__chat"):
        r.add_get(w, look)
    r.add_route("*", "/__ctl", look)
    run = web.AppRunner(app)
    await run.setup()
    await web.TCPSite(run, "127.0.0.1", A.port).start()
    port = run.addresses[0][1]
    print(
        f"telegram up on http://127.0.0.1:{port} (Bot API {aiogram.__api_version__}, {len(METHODS)} methods)",
        flush=True,
    )
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
