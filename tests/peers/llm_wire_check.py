#!/usr/bin/env python3
"""Validates recorded model requests with the vendors' own types (PyPI openai, anthropic; pydantic comes along).

    llm_wire_check.py wire.jsonl        lines {"path": "...", "body": {...}} as llm_real.py writes them

Prints each bad request, then `N passed, N failed`; exits 1 when one is bad or none was recorded. A body is bad when its
type refuses it, and when the type does not know a key of it, at any depth.
"""

import collections.abc
import functools
import importlib
import json
import sys

from pydantic import TypeAdapter, ValidationError

# A path, and where its types are; the second serves bodies with `"stream": true`.
TYPES = {
    "/v1/chat/completions": ("openai.types.chat.completion_create_params", "CompletionCreateParams"),
    "/v1/responses": ("openai.types.responses.response_create_params", "ResponseCreateParams"),
    "/v1/messages": ("anthropic.types.message_create_params", "MessageCreateParams"),
}


@functools.cache
def adapter(path, stream):
    module, name = TYPES[path]
    return TypeAdapter(getattr(importlib.import_module(module), name + ("Streaming" if stream else "NonStreaming")))


def drained(value):
    """Iterables are validated lazily: without a walk, faults within them never show."""
    if isinstance(value, dict):
        return {key: drained(inner) for key, inner in value.items()}
    if isinstance(value, (str, bytes)) or not isinstance(value, collections.abc.Iterable):
        return value
    return [drained(inner) for inner in value]


def unknown(sent, known, at=""):
    """Keys of `sent` that validation dropped, because no type knows them."""
    if isinstance(sent, dict) and isinstance(known, dict):
        for key, inner in sent.items():
            if key in known:
                yield from unknown(inner, known[key], f"{at}{key}.")
            else:
                yield f"{at}{key}"
    elif isinstance(sent, list) and isinstance(known, list):
        for number, pair in enumerate(zip(sent, known, strict=True)):
            yield from unknown(*pair, f"{at}{number}.")


def nearest(error):
    """Unions report every branch: show the one that came nearest."""
    branches = {}
    for fault in error.errors(include_url=False):
        branch = tuple(str(step) for step in fault["loc"][:2])
        branches.setdefault(branch, []).append(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}")
    best = min(branches.values(), key=lambda faults: (any("Input should be '" in text for text in faults), len(faults)))
    return "; ".join(best[:4])[:500]


def faults(path, body):
    if path not in TYPES:
        return f"no vendor has {path}"
    try:
        known = drained(adapter(path, bool(body.get("stream"))).validate_python(body))
    except ValidationError as error:
        return nearest(error)
    return ", ".join(f"unknown key {key}" for key in unknown(body, known))


def main():
    good = bad = 0
    with open(sys.argv[1], encoding="utf8") as wire:
        lines = [json.loads(line) for line in wire if line.strip()]
    for line in lines:
        if not isinstance(line.get("body"), dict):
            continue
        found = faults(line["path"].split("?")[0], line["body"])
        if found:
            bad += 1
            print(f"BAD {line['path']}: {found}")
        else:
            good += 1
    print(f"{good} passed, {bad} failed")
    return 1 if bad or not good else 0


if __name__ == "__main__":
    sys.exit(main())
