"""Man pages and shell completion, made by the commands: roff takes the pages, and bash completes with the script."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from deploy import manual, reference
from manager.cli import main

PAGES = {
    manual.page_name(context): (context, manual.man_page(context))
    for context in reference.commands(click.Context(main, info_name="equipoise"))
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_every_option_and_section_of_its_help(name: str) -> None:
    context, page = PAGES[name]
    for one in context.command.get_params(context):
        if isinstance(one, click.Option) and not one.hidden:
            assert one.opts[0].replace("-", "\\-") in page
    assert page.count(".SH NAME\n") == page.count(".SH OPTIONS\n") == 1
    assert (".SH EXAMPLES\n" in page) == ("\nEXAMPLES\n" in context.get_help())


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_roff_has_nothing_against_the_pages() -> None:
    text = "\n".join(page for _, page in PAGES.values())
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-P-c"], input=text, capture_output=True, text=True, check=True
    )
    assert not done.stderr
    assert "equipoise release --vm shop-cache" in done.stdout


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    manual.write(tmp_path)
    script = tmp_path / "share/bash-completion/completions/equipoise"
    steps = f"""
        source {script}
        for words in "equipoise rel" "equipoise release --v"; do
            COMP_WORDS=($words) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMPREPLY=()
            _equipoise_completion equipoise
            echo "${{COMPREPLY[@]}}"
        done
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", steps], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["release", "--vm"], done.stderr
