"""What may have been meant by a command or an option that does not exist.

Close spellings come from difflib; the words of other brokers and tools from the tables below. This
file imports click and nothing of Penstock: `penstock --help` loads it.
"""

from __future__ import annotations

import click

# the path of a group -> a word of another tool -> the command that does the same here
WORDS: dict[str, dict[str, str]] = {
    "penstock": {
        **dict.fromkeys(("subscribe", "sub", "follow", "watch"), "tail"),
        **dict.fromkeys(("read", "receive", "recv", "cat", "get", "fetch", "pull"), "consume"),
        **dict.fromkeys(("publish", "pub", "send", "put", "write", "producer"), "produce"),
        **dict.fromkeys(("ls", "list", "topic"), "topics ls"),
        **dict.fromkeys(("create", "create-topic", "mk"), "topics create"),
        **dict.fromkeys(("start", "serve", "run", "server", "broker", "daemon"), "up"),
        **dict.fromkeys(("ps", "stats", "state", "health", "ping"), "status"),
        **dict.fromkeys(("find", "search", "grep", "lookup", "key"), "query key"),
        **dict.fromkeys(("check", "fsck", "verify"), "store verify"),
        **dict.fromkeys(("dump", "inspect"), "store inspect"),
        **dict.fromkeys(("repair", "fix"), "store repair"),
        **dict.fromkeys(("purge", "prune", "gc", "cleanup", "delete", "rm"), "clean"),
        **dict.fromkeys(("settings", "conf", "configure", "get-config"), "config show"),
        **dict.fromkeys(("perf", "benchmark"), "bench"),
        "info": "store info",
        "rebuild": "store rebuild",
        "help": "--help",
        "consumer": "consume",
    },
    "penstock topics": {
        "list": "ls",
        **dict.fromkeys(("show", "get", "info"), "describe"),
        **dict.fromkeys(("add", "new", "make"), "create"),
        **dict.fromkeys(("alter", "set", "scale"), "update"),
        **dict.fromkeys(("delete", "remove", "drop"), "rm"),
    },
    "penstock groups": {
        "list": "ls",
        **dict.fromkeys(("show", "get", "info"), "describe"),
        **dict.fromkeys(("seek", "set"), "reset"),
        **dict.fromkeys(("delete", "remove", "drop"), "rm"),
    },
    "penstock dlq": {"list": "ls", **dict.fromkeys(("retry", "replay"), "resend")},
    "penstock store": {
        **dict.fromkeys(("check", "fsck", "scrub"), "verify"),
        **dict.fromkeys(("dump", "cat", "list", "ls"), "inspect"),
        **dict.fromkeys(("show", "status", "stat"), "info"),
        **dict.fromkeys(("fix", "recover"), "repair"),
        **dict.fromkeys(("reindex", "index"), "rebuild --index"),
    },
    "penstock query": {
        **dict.fromkeys(("message", "msg", "message-id", "offset"), "id"),
        **dict.fromkeys(("unique", "uniq", "uniq-key"), "unique-key"),
        "keys": "key",
    },
    "penstock config": dict.fromkeys(("get", "list", "ls", "print", "check"), "show"),
    "penstock recovery": dict.fromkeys(("list", "ls", "history", "status"), "show"),
}
# A broker in the foreground is ended without a command.
_STOPS = ("stop", "down", "shutdown", "kill", "quit", "exit")
# an option of another tool -> Penstock's; suggested if the command has it
OPTIONS = {
    **dict.fromkeys(("-f", "--tail", "--watch", "--wait"), "--follow"),
    **dict.fromkeys(("-n", "-c", "--count", "--limit", "--max-messages", "--num"), "--max"),
    **dict.fromkeys(("--since", "--start", "--offset", "--from-beginning"), "--from"),
    **dict.fromkeys(("--until", "--end", "--stop"), "--to"),
    **dict.fromkeys(("--partition", "-p"), "--queue"),
    **dict.fromkeys(("--partitions",), "--queues"),
    **dict.fromkeys(("--dir", "--path", "--data", "--store-dir", "-d", "-s"), "--store"),
    **dict.fromkeys(("--host", "--server", "--broker", "--bootstrap-server"), "--endpoint"),
    **dict.fromkeys(("--header", "--prop", "-H"), "--property"),
    **dict.fromkeys(("--topic", "-t"), "TOPIC"),
    **dict.fromkeys(("--port", "-P"), "--produce-port"),
    **dict.fromkeys(("--json", "--format"), "--output"),
    **dict.fromkeys(("--filter", "--where"), "--sql"),
}


class UnknownCommand(click.UsageError):
    """There is no command of this name."""

    def __init__(self, name: str, hint: str, context: click.Context) -> None:
        super().__init__(f"there is no command of this name: {name}", context)
        self.name = name
        self.hint = hint


class Group(click.Group):
    """A group that says what may have been meant by a name it does not have."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        unknown = self.get_command(ctx, name) is None and not name.startswith("-")
        if unknown and not ctx.resilient_parsing:
            raise UnknownCommand(name, near_command(name, ctx, self), ctx)
        return super().resolve_command(ctx, args)


def near_command(name: str, context: click.Context, group: click.Group) -> str:
    """The hint for a command that does not exist."""
    path = context.command_path
    if path == "penstock" and name.lower() in _STOPS:
        return "a broker runs until Ctrl-C or SIGTERM: end its `penstock up`"
    word = WORDS.get(path, {}).get(name.lower())
    if word is None:
        word = _closest(name.lower(), group.list_commands(context))
    return f"did you mean: {path} {word}" if word else f"see: {path} --help"


def near_option(name: str, context: click.Context | None) -> str:
    """The hint for an option that the command does not have."""
    if context is None:
        return ""
    see = f"see: {context.command_path} --help"
    options = [
        each
        for parameter in context.command.get_params(context)
        if isinstance(parameter, click.Option)
        for each in (*parameter.opts, *parameter.secondary_opts)
    ]
    meant = OPTIONS.get(name)
    if meant == "TOPIC" and any(each.name == "topic" for each in context.command.params):
        return f"did you mean the argument TOPIC? {see}"
    if meant not in options:
        meant = _closest(name, options)
    return f"did you mean {meant}? {see}" if meant else see


def _closest(name: str, names: list[str]) -> str | None:
    import difflib  # late, because most commands are right, and users wait for each

    near = difflib.get_close_matches(name, names, 1)
    return near[0] if near else None
