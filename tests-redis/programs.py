"""Programs in other languages, with the clients that `./check setup` has installed from their lock files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from targets import Address

HERE = Path(__file__).parent
SOURCES = HERE / "clients"
GUIDES = HERE.parent / "docs" / "guides"
LANGUAGES = ["python", "node", "go", "java"]
SECONDS_MAX = 300


class Programs:
    """Builds and runs them beside their libraries, under `installed`."""

    def __init__(self, installed: Path) -> None:
        self.installed = installed.resolve()
        assert (self.installed / ".installed").is_file(), f"{installed} is not there: ./check setup"

    def round(self, language: str, address: Address, prefix: str) -> list[dict[str, str]]:
        """What each client and framework of a language has come to, probe by probe."""
        host, port = address
        sources = {"python": "round.py", "node": "round.mjs", "go": "round/main.go", "java": "Round.java"}
        source = (SOURCES / language / sources[language]).read_text()
        arguments = [f"{host}:{port}", prefix] if language == "go" else [host, str(port), prefix]
        printed = self.run(language, "Round", source, arguments)
        return [json.loads(line) for line in printed.splitlines()]

    def run(self, language: str, name: str, source: str, arguments: list[str]) -> str:
        """Builds a program of one file, runs it, and returns what it prints."""
        return call([*self.build(language, name, source), *arguments], self.folder(language))

    def rolling(self, language: str) -> list[str]:
        """Builds what uses the classes of a guide until it is told to end, and returns the command that runs it. `ioredis`
        has no guide."""
        if language == "ioredis":
            parts = [(SOURCES / "node" / name).read_text() for name in ("ioredis.mjs", "rolling.mjs")]
            return self.build("node", "Ioredis", "".join(parts))
        page = code_of(GUIDES / f"{language}.md", language)
        sources = {"python": "rolling.py", "node": "rolling.mjs", "go": "rolling/rolling.go", "java": "Rolling.java"}
        trial = (SOURCES / language / sources[language]).read_text()
        if language == "go":
            assert "func main()" in page
            folder = self.folder(language) / "rolling"
            folder.mkdir(exist_ok=True)
            (folder / "rolling.go").write_text(trial)
            return self.build(language, "Rolling", page.replace("func main()", "func page()"))
        if language == "java":
            self.build(language, "Carts", page)
            return self.build(language, "Rolling", trial)
        ended = re.search(r"^(cart, \*addresses =|const \[cart, )", page, re.MULTILINE)
        assert ended, f"the program of {language}.md does not read its arguments after its classes"
        return self.build(language, "Rolling", page[: ended.start()] + trial)

    def folder(self, language: str) -> Path:
        """Where the programs of a language are built and run."""
        folder = self.installed / ("node" if language == "ioredis" else language)
        folder.mkdir(exist_ok=True)
        return folder

    def build(self, language: str, name: str, source: str) -> list[str]:
        """Builds a program of one file, and returns the command that runs it in `folder`."""
        return getattr(self, f"_{language}")(self.folder(language), name, source)

    def _python(self, folder: Path, name: str, source: str) -> list[str]:
        (folder / f"{name.lower()}.py").write_text(source)
        return [sys.executable, str(folder / f"{name.lower()}.py")]

    def _node(self, folder: Path, name: str, source: str) -> list[str]:
        (folder / f"{name.lower()}.mjs").write_text(source)
        return [tool("node"), f"{name.lower()}.mjs"]

    def _go(self, folder: Path, name: str, source: str) -> list[str]:
        package = folder / name.lower()
        package.mkdir(exist_ok=True)
        (package / "main.go").write_text(source)
        program = folder / f"{name.lower()}.bin"
        call([tool("go"), "build", "-mod=readonly", "-o", str(program), f"./{name.lower()}"], folder)
        return [str(program)]

    def _java(self, folder: Path, name: str, source: str) -> list[str]:
        (folder / f"{name}.java").write_text(source)
        path = f"classes{os.pathsep}lib/*"
        call([tool("javac"), "-nowarn", "-cp", path, "-d", "classes", f"{name}.java"], folder)
        return [tool("java"), "-cp", path, name]


def tool(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is not installed: ./check setup"
    return found


def call(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-4000:])
    return done.stdout


def code_of(page: Path, language: str) -> str:
    """The program of a guide: its first block of code in that language, as it stands there."""
    fence = {"node": "js"}.get(language, language)
    found = re.search(rf"^```{fence}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no block of {fence}"
    return found[1]
