#!/usr/bin/env python3
"""Measures chappie beside its peers in one run, on one machine, through one client, and prints a Markdown table.

    cargo build --release -p chappie
    python3 tests/benches/compare.py > docs/BENCHMARKS.md

Peers are installed with npm and pip into --scratch on the first run. The client is this file: raw JSON-RPC over sockets
and pipes, standard library only, the same for every server. Figures are medians over --rounds rounds; in each round every
server takes its turn, so that a busy moment of the machine hits all alike. Not part of the tests: numbers depend on the
machine, and only the ratios of one run mean something.
"""

import argparse
import json
import os
import pathlib
import platform
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
REVISION = "2025-11-25"
NPM = ["@modelcontextprotocol/server-everything", "@modelcontextprotocol/server-filesystem", "@wonderwhy-er/desktop-commander"]
PYTHON_SERVER = '''
import sys
from mcp.server import MCPServer
server = MCPServer("echo")
@server.tool()
def echo(message: str) -> str:
    return "Echo: " + message
if sys.argv[1] == "stdio":
    server.run(transport="stdio")
else:
    server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
'''


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def encode(message):
    return json.dumps(message, separators=(",", ":")).encode()


def request(number, method, params):
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


INITIALIZE = request(1, "initialize", {
    "protocolVersion": REVISION, "capabilities": {}, "clientInfo": {"name": "compare", "version": "1"},
})
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
LIST = request(2, "tools/list", {})


# --- processes -------------------------------------------------------------------------------------------------------

def tree(pid):
    """The process and all that descend from it."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = pathlib.Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry))
    found, queue = [], [pid]
    while queue:
        one = queue.pop()
        found.append(one)
        queue += children.get(one, [])
    return found


def resident_mib(pid):
    total = 0
    for one in tree(pid):
        try:
            for line in pathlib.Path(f"/proc/{one}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    total += int(line.split()[1])
        except OSError:
            pass
    return total / 1024


def cpu_seconds(pid):
    total = 0
    for one in tree(pid):
        try:
            fields = pathlib.Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        except OSError:
            pass
    return total / os.sysconf("SC_CLK_TCK")


# --- clients ---------------------------------------------------------------------------------------------------------

class Pipe:
    """A server on its standard input and output."""

    def __init__(self, command, env, cwd):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=env, cwd=cwd, bufsize=0, start_new_session=True)
        self.reader = self.process.stdout.fileno()
        self.writer = self.process.stdin.fileno()
        self.rest = b""

    @property
    def pid(self):
        return self.process.pid

    def send(self, line):
        line += b"\n"
        while line:
            line = line[os.write(self.writer, line):]

    def messages(self):
        """At least one whole line."""
        while True:
            data = os.read(self.reader, 1 << 20)
            if not data:
                raise EOFError("the server closed its output")
            *lines, self.rest = (self.rest + data).split(b"\n")
            if lines:
                return [json.loads(line) for line in lines if line.startswith(b"{")]

    def ask(self, message):
        self.send(encode(message))
        while True:
            for answer in self.messages():
                if answer.get("method") and "id" in answer:
                    self.send(encode({"jsonrpc": "2.0", "id": answer["id"], "result": {"roots": []}}))
                elif answer.get("id") == message["id"]:
                    return answer

    def open(self):
        self.ask(INITIALIZE)
        self.send(encode(INITIALIZED))
        return self.ask(LIST)

    def run(self, make, count, width):
        started, latencies, failed, sent = {}, [], 0, 0
        begin = time.perf_counter()
        while len(latencies) < count:
            while sent < count and len(started) < width:
                number = 1000 + sent
                started[number] = time.perf_counter()
                self.send(make(number))
                sent += 1
            for answer in self.messages():
                number = answer.get("id")
                if answer.get("method") and number is not None:
                    self.send(encode({"jsonrpc": "2.0", "id": number, "result": {"roots": []}}))
                elif number in started:
                    latencies.append(time.perf_counter() - started.pop(number))
                    failed += "error" in answer or bool(answer["result"].get("isError"))
        return latencies, time.perf_counter() - begin, failed


class Connection:
    """One keep-alive HTTP connection; an answer is whole when its body is."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data = bytearray()

    def take(self):
        """The next whole answer as (head, body), or None."""
        split = self.data.find(b"\r\n\r\n")
        if split < 0:
            return None
        head = bytes(self.data[:split]).lower()
        at = split + 4
        mark = head.find(b"content-length:")
        if mark >= 0:
            end = at + int(head[mark + 15:].split(b"\r\n", 1)[0])
            if len(self.data) < end:
                return None
            body = bytes(self.data[at:end])
        elif b"transfer-encoding: chunked" in head:
            parts = []
            while True:
                line = self.data.find(b"\r\n", at)
                if line < 0:
                    return None
                size = int(self.data[at:line].split(b";")[0], 16)
                if len(self.data) < line + 4 + size:
                    return None
                parts.append(bytes(self.data[line + 2:line + 2 + size]))
                at = line + 4 + size
                if size == 0:
                    break
            end, body = at, b"".join(parts)
        else:
            end, body = at, b""
        original = bytes(self.data[:split])
        del self.data[:end]
        return original, body

    def receive(self):
        data = self.socket.recv(1 << 18)
        if not data:
            raise EOFError("the server closed the connection")
        self.data += data


def answer_of(body):
    if body.startswith(b"{"):
        return json.loads(body)
    for line in body.split(b"\n"):
        if line.startswith(b"data:") and line[5:].strip().startswith(b"{"):
            message = json.loads(line[5:])
            if "id" in message and "method" not in message:
                return message
    return {}


class Http:
    """A server behind a streamable HTTP endpoint."""

    def __init__(self, process, port, path="/mcp"):
        self.process, self.port, self.path, self.session = process, port, path, None

    @property
    def pid(self):
        return self.process.pid

    def bytes_of(self, body, first=False):
        head = (f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
                "Accept: application/json, text/event-stream\r\n")
        if not first:
            head += f"MCP-Protocol-Version: {REVISION}\r\n"
        if self.session:
            head += f"Mcp-Session-Id: {self.session}\r\n"
        return head.encode() + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)

    def exchange(self, connection, message, first=False):
        connection.socket.sendall(self.bytes_of(encode(message), first))
        while True:
            taken = connection.take()
            if taken:
                return taken
            connection.receive()

    def open(self):
        deadline = time.perf_counter() + 60
        while True:
            try:
                connection = Connection(self.port)
                break
            except OSError:
                if time.perf_counter() > deadline:
                    raise
                time.sleep(0.002)
        head, body = self.exchange(connection, INITIALIZE, first=True)
        for line in head.decode().split("\r\n"):
            if line.lower().startswith("mcp-session-id:"):
                self.session = line.split(":", 1)[1].strip()
        self.exchange(connection, INITIALIZED)
        return answer_of(self.exchange(connection, LIST)[1])

    def ask(self, message):
        return answer_of(self.exchange(Connection(self.port), message)[1])

    def run(self, make, count, width):
        connections = [Connection(self.port) for _ in range(min(width, count))]
        selector = selectors.DefaultSelector()
        started, latencies, failed, sent = {}, [], 0, 0
        begin = time.perf_counter()
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            started[connection] = time.perf_counter()
            connection.socket.sendall(self.bytes_of(make(1000 + sent)))
            sent += 1
        while len(latencies) < count:
            for key, _ in selector.select():
                connection = key.data
                connection.receive()
                taken = connection.take()
                if not taken:
                    continue
                now = time.perf_counter()
                latencies.append(now - started[connection])
                message = answer_of(taken[1])
                failed += "result" not in message or bool(message["result"].get("isError"))
                if sent < count:
                    started[connection] = time.perf_counter()
                    connection.socket.sendall(self.bytes_of(make(1000 + sent)))
                    sent += 1
        wall = time.perf_counter() - begin
        for connection in connections:
            connection.socket.close()
        return latencies, wall, failed


# --- servers ---------------------------------------------------------------------------------------------------------

class Server:
    """One server as it is started for the run: `start()` gives an opened client; `jobs` are the calls to measure."""

    def __init__(self, name, start, jobs):
        self.name, self.start, self.jobs = name, start, jobs


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def spawn(command, env, cwd):
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                            env=env, cwd=cwd, start_new_session=True)


def call(tool, arguments):
    """Makes request bytes; `{i}` in a string argument becomes the number of the call."""
    params = {"name": tool, "arguments": arguments, "_meta": {"openai/session": "compare"}}
    template = encode(request(987654321, "tools/call", params))
    return lambda number: template.replace(b"987654321", b"%d" % number).replace(b"{i}", b"%d" % (number - 1000))


def chappie(binary, scratch):
    """Over HTTP and over pipes, each with a home of its own."""
    def world(kind):
        home = pathlib.Path(tempfile.mkdtemp(prefix="home-", dir=scratch))
        folder = home / "work"
        folder.mkdir()
        prepare(folder)
        return dict(os.environ, CHAPPIE_HOME=str(home / "state"), HOME=str(home)), folder

    def http():
        env, folder = world("http")
        port = free_port()
        process = spawn([binary, "up", "--mcp", f"127.0.0.1:{port}", "--session", f"{folder}=bench"], env, folder)
        return Http(process, port)

    def pipe():
        env, folder = world("pipe")
        return Pipe([binary, "mcp"], dict(env, CHAPPIE_SESSION=f"{folder}=bench"), folder)

    jobs = {
        "trivial": call("sessions", {}),
        "read 4 KiB": call("read", {"path": "f4k.txt"}),
        "bash true": call("bash", {"command": "true"}),
        "edit": call("edit", {"path": "edit.txt", "edits": [{"oldText": "tok_{i};", "newText": "done_{i};"}]}),
    }
    return [Server("chappie, HTTP", http, jobs), Server("chappie, stdio", pipe, jobs)]


def peers(scratch):
    env = dict(os.environ, HOME=str(scratch))
    files = scratch / "files"
    files.mkdir(exist_ok=True)
    prepare(files)
    commander = scratch / ".claude-server-commander"
    commander.mkdir(exist_ok=True)
    (commander / "config.json").write_text(json.dumps({
        "telemetryEnabled": False, "allowedDirectories": ["/"], "blockedCommands": [], "defaultShell": "bash"}))
    binaries = scratch / "node_modules" / ".bin"
    python = str(scratch / "venv" / "bin" / "python")
    server = scratch / "echo_server.py"
    server.write_text(PYTHON_SERVER)
    echo = {"trivial": call("echo", {"message": "hi"})}
    path = str(files / "f4k.txt")

    def everything():
        port = free_port()
        command = ["node", str(binaries / "mcp-server-everything"), "streamableHttp"]
        return Http(spawn(command, dict(env, PORT=str(port)), scratch), port)

    def python_http():
        port = free_port()
        return Http(spawn([python, str(server), str(port)], env, scratch), port)

    def pipe(*command):
        return lambda: Pipe(list(command), env, files)

    edit = call("edit_block", {"file_path": str(files / "edit.txt"), "old_string": "tok_{i};", "new_string": "done_{i};"})
    return [
        Server("TypeScript server-everything, HTTP", everything, echo),
        Server("TypeScript server-everything, stdio", pipe("node", str(binaries / "mcp-server-everything"), "stdio"), echo),
        Server("Python SDK, HTTP", python_http, echo),
        Server("Python SDK, stdio", pipe(python, str(server), "stdio"), echo),
        Server("server-filesystem, stdio", pipe("node", str(binaries / "mcp-server-filesystem"), str(files)),
               {"read 4 KiB": call("read_text_file", {"path": path})}),
        Server("Desktop Commander, stdio", pipe("node", str(binaries / "desktop-commander")), {
            "read 4 KiB": call("read_file", {"path": path}),
            "bash true": call("start_process", {"command": "true", "timeout_ms": 5000}),
            "edit": edit,
        }),
    ]


def prepare(folder):
    """The file that is read, of 4 KiB, and the file that is edited."""
    line = "line %04d of a small text file for reading\n"
    (folder / "f4k.txt").write_text("".join(line % number for number in range(95)))
    (folder / "edit.txt").write_text("".join(f"tok_{number}; some text on the line\n" for number in range(2000)))


def install(scratch):
    if not (scratch / "node_modules" / ".bin" / "desktop-commander").exists():
        say("installing the npm peers")
        (scratch / "package.json").write_text('{"private": true}')
        env = dict(os.environ, PUPPETEER_SKIP_DOWNLOAD="1")
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *NPM],
                       cwd=scratch, env=env, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    if not (scratch / "venv" / "bin" / "uvicorn").exists():
        say("installing the Python SDK")
        subprocess.run([sys.executable, "-m", "venv", str(scratch / "venv")], check=True)
        subprocess.run([str(scratch / "venv" / "bin" / "pip"), "install", "-q", "-r",
                        str(ROOT / "tests" / "clients" / "requirements.txt")], check=True, stdout=sys.stderr)


# --- what the machine itself takes -----------------------------------------------------------------------------------

def floors(scratch):
    """Median milliseconds of what no server can do without: making 4 KiB durable, and starting a shell."""
    durable, shell = [], []
    with open(scratch / "floor", "wb", buffering=0) as file:
        for number in range(200):
            begin = time.perf_counter()
            os.pwrite(file.fileno(), b"x" * 4096, number * 4096)
            os.fdatasync(file.fileno())
            durable.append(time.perf_counter() - begin)
    for _ in range(200):
        begin = time.perf_counter()
        os.waitpid(os.posix_spawn("/bin/bash", ["bash", "-c", "true"], os.environ), 0)
        shell.append(time.perf_counter() - begin)
    return {"4 KiB made durable (fdatasync)": median(durable) * 1000, "`bash -c true` spawned": median(shell) * 1000}


# What we aim at, over HTTP unless said otherwise: (what, key of the results, bound, whether less is better).
TARGETS = [
    ("trivial call, p50, ms", "trivial at 1 p50", 0.15, True),
    ("trivial call, p99, ms", "trivial at 1 p99", 1.0, True),
    ("trivial calls/s at 32", "trivial at 32 rate", 6000, False),
    ("read 4 KiB, p50, ms", "read 4 KiB at 1 p50", 0.35, True),
    ("edit, p50, ms", "edit at 1 p50", 0.7, True),
    ("bash true, p50, ms", "bash true at 1 p50", 2.5, True),
    ("start to tools/list, ms", "start ms", 60, True),
    ("idle memory, MiB", "idle MiB", 16, True),
]


# --- the run ---------------------------------------------------------------------------------------------------------

def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def median(values):
    return percentile(values, 0.5) if values else None


def end(client):
    try:
        os.killpg(client.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    client.process.wait()


def measure(server, options, results):
    """One round of one server."""
    begin = time.perf_counter()
    client = server.start()
    try:
        tools = client.open()["result"]["tools"]
        note(results, server.name, "start ms", (time.perf_counter() - begin) * 1000)
        results[server.name]["tools"] = len(tools)
        time.sleep(1)
        note(results, server.name, "idle MiB", resident_mib(client.pid))
        before, at = cpu_seconds(client.pid), time.perf_counter()
        time.sleep(options.idle)
        note(results, server.name, "idle CPU %", 100 * (cpu_seconds(client.pid) - before) / (time.perf_counter() - at))
        for job, make in server.jobs.items():
            count = options.slow_calls if "Commander" in server.name else options.calls
            if job == "edit":
                # Each call replaces a mark of its own, one after the other.
                record(results, server.name, job, 1, client.run(make, min(count, 400), 1))
                continue
            client.run(make, max(1, count // 10), 1)
            for width in (1, 32):
                record(results, server.name, job, width, client.run(make, count, width))
        note(results, server.name, "MiB after", resident_mib(client.pid))
    finally:
        end(client)


def note(results, server, what, value):
    results.setdefault(server, {}).setdefault(what, []).append(value)


def record(results, server, job, width, outcome):
    latencies, wall, failed = outcome
    key = f"{job} at {width}"
    note(results, server, f"{key} p50", percentile(latencies, 0.5) * 1000)
    note(results, server, f"{key} p99", percentile(latencies, 0.99) * 1000)
    note(results, server, f"{key} rate", len(latencies) / wall)
    note(results, server, f"{key} failed", failed)


def shown(value, digits=2):
    return "–" if value is None else f"{value:,.{digits}f}"


def table(results, jobs):
    get = lambda server, what: median(results[server].get(what, []))
    print("| server | tools | start to tools/list, ms | idle memory, MiB | idle CPU, % | memory after the calls, MiB |")
    print("|---|---|---|---|---|---|")
    for server in results:
        print(f"| {server} | {results[server]['tools']} | {shown(get(server, 'start ms'), 0)} | "
              f"{shown(get(server, 'idle MiB'), 1)} | {shown(get(server, 'idle CPU %'))} | {shown(get(server, 'MiB after'), 1)} |")
    for job in jobs:
        print(f"\n**{job}**\n")
        print("| server | p50 at 1, ms | p99 at 1, ms | calls/s at 1 | p50 at 32, ms | p99 at 32, ms | calls/s at 32 | p50 at 1 against chappie HTTP |")
        print("|---|---|---|---|---|---|---|---|")
        ours = get("chappie, HTTP", f"{job} at 1 p50")
        for server in results:
            one = get(server, f"{job} at 1 p50")
            if one is None:
                continue
            failed = sum(results[server].get(f"{job} at 1 failed", [])) + sum(results[server].get(f"{job} at 32 failed", []))
            cells = [shown(get(server, f"{job} at {width} {what}"), 0 if what == "rate" else 3)
                     for width in (1, 32) for what in ("p50", "p99", "rate")]
            ratio = f"{one / ours:.1f}×" if ours else "–"
            mark = f" ({failed} failed)" if failed else ""
            print(f"| {server}{mark} | {' | '.join(cells)} | {ratio} |")


def targets(results, machine):
    print("\n## Targets\n\n| target | aim | HTTP | stdio | met over HTTP |\n|---|---|---|---|---|")
    for what, key, bound, less in TARGETS:
        http, pipe = (median(results[server].get(key, [])) for server in ("chappie, HTTP", "chappie, stdio"))
        met = http is not None and (http <= bound if less else http >= bound)
        digits = 2 if bound < 10 else 0
        print(f"| {what} | {'≤' if less else '≥'} {bound:,} | {shown(http, digits)} | {shown(pipe, digits)} | "
              f"{'yes' if met else 'no'} |")
    print("\nWhat the machine itself takes, median: " + "; ".join(f"{what} {value:.2f} ms" for what, value in machine.items()) + ".")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--chappie", default=str(ROOT / "target" / "release" / "chappie"))
    parser.add_argument("--scratch", default=str(pathlib.Path(tempfile.gettempdir()) / "chappie-compare"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--slow-calls", type=int, default=100, help="calls of peers that take over 5 ms each")
    parser.add_argument("--idle", type=float, default=5, help="seconds over which idle CPU is taken")
    parser.add_argument("--only", help="servers whose name holds this word, besides chappie")
    options = parser.parse_args()
    options.chappie = os.path.abspath(options.chappie)
    if not shutil.which(options.chappie):
        sys.exit(f"{options.chappie} is not there: cargo build --release -p chappie")
    scratch = pathlib.Path(options.scratch)
    scratch.mkdir(parents=True, exist_ok=True)
    install(scratch)
    servers = chappie(options.chappie, scratch) + [
        server for server in peers(scratch) if not options.only or options.only in server.name]
    results, load, machine = {}, os.getloadavg()[0], floors(scratch)
    for round_number in range(options.rounds):
        for server in servers:
            prepare(scratch / "files")
            measure(server, options, results)
            say(f"round {round_number + 1}/{options.rounds}: {server.name}")
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    print("# Benchmarks\n")
    print(f"Made by `python3 tests/benches/compare.py` (release build; {options.rounds} rounds of {options.calls} calls, "
          f"medians of the rounds) on {os.cpu_count()} cores of {cpu}, Linux {platform.release()}; load {load:.1f} at the "
          f"start and {os.getloadavg()[0]:.1f} at the end. Only the ratios of one run mean something.\n")
    table(results, ["trivial", "read 4 KiB", "bash true", "edit"])
    targets(results, machine)


if __name__ == "__main__":
    main()
