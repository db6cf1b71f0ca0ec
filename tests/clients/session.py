"""Drives one node through the Python SDK and prints what it got as one JSON object; the Rust test judges it.

    session.py MODE CHAT SESSION --url URL
    session.py MODE CHAT SESSION --stdio PROGRAM ARGUMENT...

MODE is the SDK's own: legacy (2025-11-25), auto, or 2026-07-28.
"""

import asyncio
import json
import os
import sys

from mcp import Client, StdioServerParameters


def plain(result):
    """A tool result as JSON, as it is on the wire."""
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


async def drive(server, mode, chat, session):
    report = {"steps": {}}
    async with Client(server, mode=mode) as client:
        report["protocol"] = client.protocol_version
        report["server"] = client.server_info.name
        report["instructions"] = client.instructions or ""
        report["tools"] = [tool.name for tool in (await client.list_tools()).tools]

        async def step(name, tool, **arguments):
            arguments.setdefault("sessionId", session)
            result = await client.call_tool(tool, arguments, meta={"openai/session": chat})
            report["steps"][name] = plain(result)

        await step("init", "init")
        await step("sessions", "sessions")
        await step("write", "write", path="notes/a.txt", content="one\ntwo\n")
        await step("read", "read", path="notes/a.txt")
        await step("edit", "edit", path="notes/a.txt", edits=[{"oldText": "two", "newText": "three"}])
        await step("bash", "bash", command="cat notes/a.txt; echo from-bash")
        calls = [
            {"name": "read", "arguments": {"path": "notes/a.txt"}},
            {"name": "bash", "arguments": {"command": "echo from-call"}},
        ]
        await step("call", "call", calls=calls)
        await step("error", "read", path="missing.txt")
        await step("image", "read", path="picture.png")
        running = asyncio.create_task(step("cancelled", "bash", command="touch begun; sleep 31"))
        while not os.path.exists("begun"):
            await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await step("after", "bash", command="echo after-cancel")
        await step("history", "history", limit=50)
    return report


def main():
    mode, chat, session, kind, *rest = sys.argv[1:]
    server = rest[0] if kind == "--url" else StdioServerParameters(command=rest[0], args=rest[1:], env=dict(os.environ))
    print(json.dumps(asyncio.run(drive(server, mode, chat, session))))


main()
