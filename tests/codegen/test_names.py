"""Names come from files that nobody vouches for: whatever they hold, the C is valid and says what it should."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import tilegrad as tg
from tests.support.models import model, node, value, weights
from tests.support.projects import CONTRACT_FLAGS, opened, toolchain
from tilegrad.codegen.c import Comment, comment_text, identifier, print_file
from tilegrad.codegen.interface import c_string
from tilegrad.compiled import Compiled

HOSTILE = {
    "end of comment": 'x */ int escaped(void) { return 1; } /* "',
    "nested comment": "/*/ // /* **/",
    "newline": "a\n#error newline\nb\r\nc\x0b\x0c\x00d",
    "quotes": '"); system("touch /tmp/owned"); ("',
    "backslashes": "\\",
    "escape": "\\n\\0\\x41\\",
    "format": "%s%n%d%%",
    "trigraph": "what??/\n??/",
    "unicode": "модель/重み/\u202e\U0001f600",
    "long": "/".join(["layer"] * 1300),
    "empty": "",
    "digits": "0123",
    "preprocessor": "#define main x",
}


def hostile_model(name: str) -> onnx.ModelProto:
    """Every kind of name at once: node, activation, weight, input, output, graph."""
    bias, hidden = f"{name}.bias", f"{name}.hidden"
    proto = model(
        [
            node("Gemm", "x w b", "h", f"{name}1"),
            node("Relu", "h", "r", f"{name}2"),
            node("Gemm", "r v", "y", f"{name}3"),
        ],
        [value("x", [1, 4])],
        [value("y", [1, 3])],
        {"w": weights(4, 5), "b": weights(5), "v": weights(5, 3)},
    )
    renamed = {"w": f"{name}.weight", "b": bias, "h": hidden, "r": f"{name}.r", "x": f"{name} in", "y": f"{name} out"}
    for one in proto.graph.node:
        one.input[:] = [renamed.get(text, text) for text in one.input]
        one.output[:] = [renamed.get(text, text) for text in one.output]
    for tensor in (*proto.graph.initializer, *proto.graph.input, *proto.graph.output):
        tensor.name = renamed.get(tensor.name, tensor.name)
    proto.graph.name = name or "graph"
    return proto


def trained(compiled: Compiled, compiler: str) -> float:
    x = np.linspace(-1, 1, 4, dtype=np.float32)[None]
    with opened(compiled, toolchain(compiler, CONTRACT_FLAGS)) as session:
        first = session.step(x, [1])
        session.update()
        assert session.step(x, [1]) < first
    return first


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_any_name_gives_valid_c_that_runs(name: str, tmp_path: Path) -> None:
    compiled = tg.compile(hostile_model(name), tg.Recipe(), target="host", weights_as_c=True)
    losses = {trained(compiled, compiler) for compiler in ("gcc", "clang") if _installed(compiler)}
    plain = tg.compile(hostile_model("plain"), tg.Recipe(), target="host")
    with opened(plain) as session:
        assert losses == {session.step(np.linspace(-1, 1, 4, dtype=np.float32)[None], [1])}
    assert b"escaped(" not in _code_of(compiled, tmp_path) and b"system(" not in _code_of(compiled, tmp_path)


def _installed(compiler: str) -> bool:
    return subprocess.run(["which", compiler], capture_output=True, check=False).returncode == 0


def _code_of(compiled: Compiled, folder: Path) -> bytes:
    """model.c as the compiler sees it behind its comments, string literals taken out."""
    source = folder / "model.c"
    source.write_bytes(compiled.project.files["model.c"])
    command = ["gcc", "-std=c99", "-fpreprocessed", "-dD", "-E", "-P", str(source)]
    text = subprocess.run(command, capture_output=True, check=True).stdout
    return b"\n".join(line for line in text.splitlines() if b'{"' not in line)


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_tensors_name_can_be_read_back(name: str, tmp_path: Path) -> None:
    """The table in C and the manifest hold the name itself, byte for byte (up to a zero, where C's strings end)."""
    compiled = tg.compile(hostile_model(name), tg.Recipe(), target="host")
    names = [tensor.name for tensor in compiled.program.state]
    assert f"{name}.weight" in names
    manifest = json.loads(compiled.project.files["manifest.json"])
    assert [tensor["name"] for tensor in manifest["tensors"]] == names
    source = tmp_path / "print.c"
    table = ", ".join(f'"{c_string(text)}"' for text in names)
    source.write_text(
        f"#include <stdio.h>\nstatic const char *const names[] = {{{table}}};\n"
        "int main(void)\n{\n"
        f"    for (int i = 0; i < {len(names)}; i++) {{ fputs(names[i], stdout); putchar(0); }}\n    return 0;\n}}\n"
    )
    subprocess.run(
        ["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(tmp_path / "print")], check=True
    )
    printed = subprocess.run([str(tmp_path / "print")], capture_output=True, check=True).stdout
    assert printed.split(b"\0")[:-1] == [text.encode().split(b"\0")[0] for text in names]


RESERVED = """
int float for register restrict inline asm typeof bool true class new template this linux unix
memcpy memset uint8_t int64_t float_t tg_model tg_status tg_run m i state arena forward_0_fc_Gemm update_0 NULL main
""".split()


@pytest.mark.parametrize("standard", ["c99", "gnu11"])
def test_inputs_called_like_words_of_c(standard: str) -> None:
    """Each as an input, all in one model; the header also has to survive a C++ compiler."""
    nodes, total = [], "sum0"
    nodes.append(node("Gemm", f"{RESERVED[0]} w", "sum0", "fc/Gemm"))
    for position, word in enumerate(RESERVED[1:], start=1):
        nodes.append(node("Add", f"{total} {word}", f"sum{position}", word))
        total = f"sum{position}"
    nodes.append(node("Identity", total, "int", "last"))
    inputs = [value(word, [1, 4]) for word in RESERVED]
    inputs[0].name = "auto"
    nodes[0].input[0] = "auto"
    compiled = tg.compile(model(nodes, inputs, [value("int", [1, 4])], {"w": weights(4, 4)}), tg.Recipe())
    flags = (*(flag for flag in CONTRACT_FLAGS if not flag.startswith("-std")), f"-std={standard}")
    x = [np.full((1, 4), k, np.float32) for k in range(len(RESERVED))]
    with opened(compiled, toolchain("gcc", flags)) as session:
        assert session.run("step", [*x, [1]])[0] > 0
        (y,) = session.run("infer", x)
    np.testing.assert_allclose(y, x[0] @ weights(4, 4) + sum(range(len(RESERVED))), rtol=1e-5)
    header = compiled.project.files["model.h"]
    done = subprocess.run(
        ["gcc", "-x", "c++", "-fsyntax-only", "-Wall", "-Werror", "-"], input=header, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_comment_stays_one(text: str) -> None:
    printed = print_file((Comment(f"{comment_text(text)}\n{comment_text(text)}"),))
    assert printed.count("*/") == 1 and printed.endswith("*/\n") and printed.count("/*") == 1
    assert all(len(line) < 200 and line.isascii() and line.isprintable() for line in printed.splitlines())
    assert "??/" not in printed


def test_identifiers_are_short_and_never_empty() -> None:
    for text in HOSTILE.values():
        found = identifier(text)
        assert 0 < len(found) <= 40 and found.isascii() and found.replace("_", "a").isalnum()
