"""What the kernel says a process is doing: one letter, as `ps` shows it."""

from __future__ import annotations

from pathlib import Path


def process_state(pid: int) -> str:
    """R, S, D, Z and so on. Raises FileNotFoundError where there is no such process."""
    # before it stands the process's name in brackets, which may have any characters
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_stopped(pid: int) -> bool:
    """Whether a signal (SIGSTOP) or a debugger has stopped it, until somebody lets it continue."""
    return process_state(pid) in "Tt"
