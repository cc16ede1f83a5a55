"""Run in a pod: try what an attacker there could try, and print what became of it as JSON.

python3 attacker.py COORDINATOR CERTIFICATES ATTEMPT…

CERTIFICATES is the folder of a pod's own, or `forged`: of an authority that the attacker makes.
"""

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

import aiohttp

SECONDS = 15
PORT, READ_ONLY_PORT = 7443, 7480
EVIL = ["touch", f"{os.environ.get('TMPDIR', '/tmp')}/evil"]
ROSTER = {
    "generation": 99,
    "command": EVIL,
    "backend": "MPI",
    "env": {},
    "hosts": [{"host": "worker-1", "podUID": "evil", "slots": 1}],
}
SAMPLE = {"generation": 1, "step": 1, "stepSeconds": 1, "waitSeconds": 0, "time": 1}
CALLS = {
    "put roster": ("PUT", "/v1/roster", ROSTER),
    "put plan": ("PUT", "/v1/plan", {"generation": 99, "densityPermille": 1}),
    "get plan": ("GET", "/v1/plan", None),
    "post telemetry": ("POST", "/v1/telemetry", SAMPLE),
    "get status": ("GET", "/v1/status", None),
    "post stop": ("POST", "/v1/stop", {"reason": "evil"}),
}
CUT_OFF = (ConnectionError, HTTPException, aiohttp.ClientError)


def context(folder: str) -> ssl.SSLContext:
    """A client that trusts everybody and shows the certificate in ``folder``, if one is named."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    if folder:
        made.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    return made


def connect(address: str, port: int) -> str:
    try:
        socket.create_connection((address, port), timeout=3).close()
    except TimeoutError:
        return "dropped"
    except OSError as error:
        return str(error.strerror)
    return "connected"


def call(address: str, folder: str, method: str, path: str, body: object) -> str:
    connection = HTTPSConnection(address, PORT, context=context(folder), timeout=SECONDS)
    try:
        connection.request(method, path, body=None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return f"{answer.status} {answer.read(500).decode()}"
    except (ssl.SSLError, *CUT_OFF) as error:
        return f"cut off: {type(error).__name__}: {error}"
    finally:
        connection.close()


def plain(address: str) -> str:
    """Try to set the plan by the port that is there to look only."""
    connection = HTTPConnection(address, READ_ONLY_PORT, timeout=SECONDS)
    connection.request("PUT", "/v1/plan", body=json.dumps(CALLS["put plan"][2]))
    return str(connection.getresponse().status)


async def talk(address: str, folder: str, host: str) -> str:
    """Register as ``host`` and hand the coordinator commands to run; returns its answers."""
    register = {
        "type": "register",
        "protocol": 1,
        "host": host,
        "podUID": "evil",
        "generation": 99,
        "slots": 8,
    }
    run = {"type": "run", "id": "evil", "argv": EVIL, "env": {}, "ranks": 0, "keep": 0}
    async with asyncio.timeout(SECONDS), aiohttp.ClientSession() as session:
        url = f"https://{address}:{PORT}/v1/agent"
        async with session.ws_connect(url, ssl=context(folder)) as channel:
            # What is no message at all comes last: it ends the conversation.
            for message in (register, run, {**run, "type": "exit", "status": 0}, "nonsense"):
                await channel.send_str(json.dumps(message))
            answers = [message.json() async for message in channel if message.type is aiohttp.WSMsgType.TEXT]
            said = "; ".join(f"{answer['type']} {answer.get('reason', '')}".strip() for answer in answers)
            return f"{channel.close_code} {said}"


def agent_obeys(folder: str) -> str:
    """Whether an agent takes somebody with a worker's certificate for its coordinator."""
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)
        where = ["--coordinator", f"127.0.0.1:{listener.getsockname()[1]}", "--tls", folder]
        command = [
            sys.executable,
            "-m",
            "gradsieve_hvd",
            "agent",
            *where,
            "--host",
            "worker-1",
            "--slots",
            "1",
        ]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as agent:
            try:
                with (
                    listener.accept()[0] as channel,
                    served.wrap_socket(channel, server_side=True) as secured,
                ):
                    return f"it said {secured.recv(100)!r}"
            except ssl.SSLError:
                return next((line for line in agent.stderr if "TLS" in line), "it said nothing").strip()
            finally:
                agent.kill()


def api_server() -> str:
    """Ask the API server for the namespace's Secrets, with whatever token the pod has."""
    where = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
    connection = HTTPSConnection(*where, context=context(""), timeout=SECONDS)
    connection.request("GET", f"/api/v1/namespaces/{os.environ['GRADSIEVE_NAMESPACE']}/secrets")
    return str(connection.getresponse().status)


def files(folder: str) -> str:
    found = sorted(path.name for path in Path(folder).iterdir() if not path.name.startswith(".."))
    token = Path("/var/run/secrets/kubernetes.io").exists()
    return f"{' '.join(found)}; {'a' if token else 'no'} token"


def forge() -> str:
    """Make certificates that say what the job's own do, signed by another authority."""
    folder = tempfile.mkdtemp()
    command = ["-m", "gradsieve_hvd", "certificates", folder, "--host", "worker-0"]
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return f"{folder}/operator"


def attempt(name: str, address: str, folder: str) -> str:
    if name in CALLS:
        return call(address, folder, *CALLS[name])
    if name.startswith("register "):
        try:
            return asyncio.run(talk(address, folder, name.removeprefix("register ")))
        except CUT_OFF as error:
            return f"cut off: {type(error).__name__}: {error}"
    return {
        "connect": lambda: connect(address, PORT),
        "connect read-only": lambda: connect(address, READ_ONLY_PORT),
        "put plan read-only": lambda: plain(address),
        "without certificate": lambda: call(address, "", *CALLS["get plan"]),
        "play the coordinator": lambda: agent_obeys(folder),
        "secrets": api_server,
        "files": lambda: files(folder),
    }[name]()


def main() -> None:
    address, folder, *names = sys.argv[1:]
    folder = forge() if folder == "forged" else folder
    print(json.dumps({name: attempt(name, address, folder) for name in names}))


if __name__ == "__main__":
    main()
