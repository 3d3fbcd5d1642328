"""A Hugging Face Hub of models in this process, with what `huggingface_hub` needs to push and fetch a model.

Commits are kept in memory. Like the real Hub, it refuses an unknown token, a card with wrong metadata and a large file
that was never uploaded, and it serves large files from another host name.
"""

import base64
import contextlib
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

# Token -> user.
USERS = {"hf_mine": "me"}
LARGE = (".bin", ".gz", ".model", ".onnx", ".pt", ".pth", ".safetensors", ".zip")
LICENSES = ("apache-2.0", "cc-by-4.0", "cc0-1.0", "gpl-3.0", "mit", "openrail", "other", "unknown")
DATE = "2026-01-01T00:00:00.000Z"


class File(NamedTuple):
    data: bytes
    large: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def oid(self) -> str:
        """Git's hash. For a large file, Git has a pointer."""
        data = self.data
        if self.large:
            head = "version https://git-lfs.github.com/spec/v1"
            data = f"{head}\noid sha256:{self.sha256}\nsize {len(self.data)}\n".encode()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def info(self, path: str) -> dict:
        lfs = {"lfs": {"oid": self.sha256, "size": len(self.data), "pointerSize": 130}} if self.large else {}
        return {"type": "file", "path": path, "oid": self.oid, "size": len(self.data)} | lfs


class Commit(NamedTuple):
    files: dict[str, File]
    parent: str | None
    title: str


class Repository:
    def __init__(self, name: str, private: bool):
        self.name, self.private = name, private
        self.commits: dict[str, Commit] = {}
        self.refs: dict[str, str] = {}
        self.commit("refs/heads/main", {}, None, "initial commit")

    def commit(self, ref: str, files: dict[str, File], parent: str | None, title: str) -> str:
        tree = sorted((path, file.oid) for path, file in files.items())
        sha = hashlib.sha1(json.dumps([self.name, tree, parent, title, len(self.commits)]).encode()).hexdigest()
        self.commits[sha] = Commit(files, parent, title)
        self.refs[ref] = sha
        return sha

    def find(self, revision: str) -> str | None:
        """Return the commit for a branch, a full ref or a commit's hash."""
        for ref in (f"refs/heads/{revision}", revision):
            if ref in self.refs:
                return self.refs[ref]
        return revision if revision in self.commits else None

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return {path: file.data for path, file in self.commits[self.find(revision)].files.items()}

    def titles(self, revision: str = "main") -> list[str]:
        """Returns the titles of the commits, oldest first."""
        sha, titles = self.find(revision), []
        while sha is not None:
            titles.append(self.commits[sha].title)
            sha = self.commits[sha].parent
        return titles[::-1]


class Refusal(Exception):
    def __init__(self, status: int, message: str, code: str | None = None, **fields):
        super().__init__(message)
        self.status, self.code, self.fields = status, code, {"error": message} | fields


def card_metadata(text: str) -> dict:
    """Returns the metadata of a card, or raises a ValueError with the Hub's message."""
    found = re.match(r"\s*---\r?\n(.*?)\r?\n---(\r?\n|$)", text, flags=re.DOTALL)
    if found is None:
        return {}
    try:
        data = yaml.safe_load(found[1]) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"YAML Metadata Error: {error}") from error
    if not isinstance(data, dict):
        raise ValueError('"metadata" must be of type object')

    def strings(key: str) -> list[str]:
        values = data.get(key) or []
        values = values if isinstance(values, list) else [values]
        if not all(isinstance(value, str) for value in values):
            raise ValueError(f'"{key}" must be a string or a list of strings')
        return values

    for value in strings("license"):
        if value not in LICENSES:
            raise ValueError(f'"license" must be one of {", ".join(LICENSES)}')
    for key in ("language", "base_model", "datasets", "tags", "pipeline_tag", "library_name"):
        strings(key)
    return data


class Hub:
    """
    `with Hub() as hub:` serves at `hub.url`, and stops at the end.

    Attributes:
        repositories: {"owner/name": Repository}
    """

    def __init__(self):
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}
        self.lock = threading.RLock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.storage = f"http://localhost:{self.server.server_port}/storage"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exception):
        self.server.shutdown()
        self.server.server_close()

    def environment(self, home, token: str | None = "hf_mine") -> dict[str, str]:
        """Returns the environment in which a fresh process finds this Hub, and keeps its files in one folder."""
        tokens = {} if token is None else {"HF_TOKEN": token}
        return tokens | {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            # So that large files use LFS.
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    # Head and body are two writes. The second must not wait for an acknowledgment of the first.
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def handle_one(self):
        url = urlsplit(self.path)
        self.query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        # Split first: a revision such as refs%2Fpr%2F1 is one part.
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        self.body = self.read_body()
        try:
            with self.hub.lock:
                self.user = self.find_user()
                self.route(parts)
        except Refusal as refusal:
            headers = {"X-Error-Code": refusal.code} if refusal.code else {}
            self.answer(refusal.fields, refusal.status, {"X-Error-Message": str(refusal)[:200]} | headers)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_one

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def answer(self, content: object, status: int = 200, headers: dict[str, str] | None = None):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        for key, value in ({"Content-Type": kind, "Content-Length": str(len(data))} | (headers or {})).items():
            self.send_header(key, " ".join(value.split()))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def find_user(self) -> str | None:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token not in USERS:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return USERS.get(token)

    def repository(self, name: str) -> Repository:
        found = self.hub.repositories.get(name)
        if found is None or (found.private and self.user is None):
            raise Refusal(401 if self.user is None else 404, "Repository not found", "RepoNotFound")
        return found

    def revision(self, repository: Repository, revision: str) -> tuple[str, dict[str, File]]:
        sha = repository.find(revision)
        if sha is None:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return sha, repository.commits[sha].files

    def route(self, parts: list[str]):
        match (self.command, *parts):
            case ("GET", "api", "whoami-v2"):
                if self.user is None:
                    raise Refusal(401, "Invalid username or password.")
                self.answer({"type": "user", "name": self.user, "orgs": [], "auth": {"type": "access_token"}})
            case ("POST", "api", "validate-yaml"):
                try:
                    card_metadata(json.loads(self.body)["content"])
                except ValueError as error:
                    raise Refusal(400, str(error), errors=[{"message": str(error)}], warnings=[]) from error
                self.answer({"errors": [], "warnings": []})
            case ("POST", "api", "repos", "create"):
                self.create(json.loads(self.body))
            case (_, "api", "models", owner, name, *rest):
                self.route_model(f"{owner}/{name}", rest)
            case ("POST", owner, name, "info", "lfs", "objects", "batch"):
                self.repository(f"{owner}/{name.removesuffix('.git')}")
                objects = [{"oid": one["oid"], "size": one["size"]} for one in json.loads(self.body)["objects"]]
                for one in objects:
                    if one["oid"] not in self.hub.large:
                        one["actions"] = {"upload": {"href": f"{self.hub.storage}/{one['oid']}"}}
                self.answer({"transfer": "basic", "objects": objects})
            case ("PUT", "storage", oid):
                if hashlib.sha256(self.body).hexdigest() != oid:
                    raise Refusal(400, "The file is not the one that was announced.")
                self.hub.large[oid] = self.body
                self.answer(b"")
            case ("GET" | "HEAD", "storage", oid):
                self.answer(self.hub.large[oid])
            case ("GET" | "HEAD", owner, name, "resolve", revision, *path) if path:
                self.resolve(self.repository(f"{owner}/{name}"), revision, "/".join(path))
            case _:
                raise Refusal(404, f"Sorry, there is nothing at {self.command} {self.path}")

    def create(self, asked: dict):
        if self.user is None:
            raise Refusal(401, "Invalid username or password.")
        name = f"{asked.get('organization') or self.user}/{asked['name']}"
        url = {"url": f"{self.hub.url}/{name}"}
        if name in self.hub.repositories:
            raise Refusal(409, "You already created this model repo", **url)
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.hub.repositories[name] = Repository(name, private)
        self.answer(url)

    def resolve(self, repository: Repository, revision: str, path: str):
        sha, files = self.revision(repository, revision)
        commit = {"X-Repo-Commit": sha}
        if path not in files:
            error = {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}
            return self.answer({"error": "Entry not found"}, 404, commit | error)
        file = files[path]
        if not file.large:
            return self.answer(file.data, 200, commit | {"ETag": f'"{file.oid}"'})
        linked = {"X-Linked-Size": str(len(file.data)), "X-Linked-Etag": f'"{file.sha256}"'}
        self.answer(b"", 302, commit | linked | {"Location": f"{self.hub.storage}/{file.sha256}"})

    def route_model(self, name: str, rest: list[str]):
        repository = self.repository(name)
        match (self.command, *rest):
            case ("GET",) | ("GET", "revision", _):
                sha, files = self.revision(repository, rest[1] if rest else "main")
                text = files["README.md"].data.decode() if "README.md" in files else ""
                card = {}
                with contextlib.suppress(ValueError):
                    card = card_metadata(text)
                known = {key: card[key] for key in ("pipeline_tag", "library_name", "tags") if key in card}
                siblings = [{"rfilename": path} for path in sorted(files)]
                self.answer({"_id": name, "id": name, "modelId": name, "sha": sha, "private": repository.private,
                             "author": name.partition("/")[0], "gated": False, "disabled": False, "downloads": 0,
                             "likes": 0, "createdAt": DATE, "lastModified": DATE, "cardData": card, "tags": [],
                             "siblings": siblings} | known)  # fmt: skip
            case ("POST", "preupload", revision):
                files, answers = self.revision(repository, revision)[1], []
                for path in (one["path"] for one in json.loads(self.body)["files"]):
                    mode = "lfs" if path.endswith(LARGE) else "regular"
                    known = (
                        {"oid": files[path].sha256 if files[path].large else files[path].oid} if path in files else {}
                    )
                    answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False} | known)
                self.answer({"files": answers})
            case ("POST", "commit", revision):
                self.commit(repository, revision)
            case ("POST", "branch", branch):
                if not re.fullmatch(r"(?!refs/)[\w./-]+", branch):
                    raise Refusal(400, f"Invalid branch name: {branch}")
                self.make_ref(repository, f"refs/heads/{branch}", json.loads(self.body).get("startingPoint") or "main")
            case ("GET", "tree", revision, *path):
                self.answer(self.listing(self.revision(repository, revision)[1], "/".join(path)))
            case _:
                raise Refusal(404, f"Sorry, there is nothing at {self.command} {self.path}")

    def make_ref(self, repository: Repository, ref: str, revision: str):
        if ref in repository.refs:
            raise Refusal(409, f"Reference {ref} already exists")
        repository.refs[ref] = self.revision(repository, revision)[0]
        self.answer({})

    def listing(self, files: dict[str, File], folder: str) -> list[dict]:
        inside = {path: file for path, file in files.items() if not folder or path.startswith(f"{folder}/")}
        if folder and not inside:
            raise Refusal(404, f"{folder} does not exist", "EntryNotFound")
        return [file.info(path) for path, file in sorted(inside.items())]

    def commit(self, repository: Repository, revision: str):
        lines = [json.loads(line) for line in self.body.splitlines()]
        parent, files = self.revision(repository, revision)
        files, header = dict(files), lines[0]["value"]
        for line in lines[1:]:
            value = line["value"]
            match line["key"]:
                case "file":
                    files[value["path"]] = File(base64.b64decode(value["content"]), large=False)
                case "lfsFile":
                    if value["oid"] not in self.hub.large:
                        raise Refusal(400, f"LFS pointer pointed to a file that does not exist: {value['path']}")
                    files[value["path"]] = File(self.hub.large[value["oid"]], large=True)
        if any(line["value"].get("path") == "README.md" for line in lines[1:]) and "README.md" in files:
            try:
                card_metadata(files["README.md"].data.decode())
            except ValueError as error:
                raise Refusal(400, f"Invalid metadata in README.md: {error}") from error
        ref = revision if revision.startswith("refs/") else f"refs/heads/{revision}"
        page, answer = f"{self.hub.url}/{repository.name}", {"success": True, "hookOutput": ""}
        if self.query.get("create_pr") == "1":
            number = 1 + sum(ref.startswith("refs/pr/") for ref in repository.refs)
            ref = f"refs/pr/{number}"
            answer["pullRequestUrl"] = f"{page}/discussions/{number}"
        elif ref not in repository.refs:
            raise Refusal(400, f"{revision} is no branch: a commit cannot be changed")
        sha = repository.commit(ref, files, parent, header["summary"])
        self.answer(answer | {"commitOid": sha, "commitUrl": f"{page}/commit/{sha}"})
