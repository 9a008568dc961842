"""Runs the code blocks of a page of the documents, as a reader would: `python run_blocks.py PAGE`.

Python blocks are one program, shell blocks run between them. What a page shows as `text` must be
what the block before it printed. Blocks below the heading `Install` are not run.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALL = re.compile(r"^## Install\n.*?(?=^## )", re.MULTILINE | re.DOTALL)


def main(page: Path) -> None:
    program: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for language, text in BLOCK.findall(INSTALL.sub("", page.read_text())):
        if language == "python":
            output = io.StringIO()
            with redirect_stdout(output):
                exec(compile(text, str(page), "exec"), program)  # noqa: S102 (it is a page of ours)
            printed = output.getvalue()
        elif language == "sh":
            command = ["bash", "-ec", text]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            printed = done.stdout
        elif language == "text":
            assert printed == text, f"the page shows {text!r}, printed was {printed!r}"
        else:
            raise AssertionError(f"a block that nobody runs: {language}")
        sys.stdout.write(f"{language}: {text.splitlines()[0]}\n{printed}\n")


main(Path(sys.argv[1]))
