"""What the kernel says a process is doing: one letter, as `ps` shows it. Knows nobody by name."""

from __future__ import annotations

from pathlib import Path


def process_state(pid: int) -> str:
    """R, S, D, Z and so on. Raises FileNotFoundError where there is no such process."""
    # a process's name stands before it, in brackets, and may have any characters
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_stopped(pid: int) -> bool:
    """Whether it stands still until somebody lets it go on: SIGSTOP, or a debugger."""
    return process_state(pid) in "Tt"
