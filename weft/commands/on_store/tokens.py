"""``weft hub token``: tokens in the cluster log, which every hub process of the store admits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from weft.commands.common import config_argument, confirm, json_option, load_hub, yes_option
from weft.commands.credentials.token import access_of, scope_options, shown_access
from weft.commands.on_store.declaring import declare, declare_all, end_of, read_facts
from weft.commands.on_store.opening import by_option, reason_option
from weft.output import counted, print_json, print_table

if TYPE_CHECKING:
    from weft.cloud_hub.declared.changes import Decision
    from weft.storage.cluster_log.log import Change
    from weft.storage.cluster_log.state import ClusterState, Fact

expires_option = click.option(
    "--expires", metavar="TIME", help="End of the token: a duration such as 90d, or a date. None by default."
)


@click.group("token")
def command() -> None:
    """Manage the tokens of all hubs of a store, whether nodes run or not.

    The cluster log in the store holds only hashes. Running hubs know a change two seconds later, on all hosts. A hub
    with a `tokens_file` admits the tokens of both. `weft token` manages such files.
    """


@command.command()
@config_argument
@click.argument("name")
@scope_options
@expires_option
@reason_option
@by_option
@json_option
@yes_option
def add(
    config_file: str,
    name: str,
    *,
    scope: str | None,
    grants: tuple[str, ...],
    edge: str | None,
    tenant: str,
    expires: str | None,
    reason: str,
    by: str | None,
    as_json: bool,
    yes: bool,
) -> None:
    """Add token NAME at the hubs of CONFIG and print it. The token is shown only once and stored nowhere.

    After the first token of a store, its hubs admit no one without a token, and links without one end. To withdraw all
    tokens does not open them again.

    \b
    weft hub token add hub.yaml press-7 --scope edge --edge press-shop-7 --expires 365d
    weft hub token add hub.yaml quality --grant 'read:press-*' --grant edges
    """
    from weft.cloud_hub.api.tokens import TokenIdentity, hash_token, new_token
    from weft.cloud_hub.declared import changes

    access = access_of(scope, grants, edge)
    _confirm_first(config_file, yes)
    token = new_token()
    until: int | None = None

    def decision(now: int) -> Decision:
        nonlocal until
        until = end_of(expires, now, "--expires")
        return changes.add_token(TokenIdentity(name, hash_token(token), access, tenant, edge, grants), until)

    declare(config_file, decision, by, reason)
    _print_secret(name, token, until, as_json=as_json, scope=str(access), tenant=tenant, edge=edge, grants=grants)


@command.command("import")
@config_argument
@click.option("--file", "path", required=True, type=click.Path(dir_okay=False), help="A tokens file of `weft token`.")
@reason_option
@by_option
@yes_option
def import_tokens(config_file: str, path: str, *, reason: str, by: str | None, yes: bool) -> None:
    """Declare the tokens of a file at the hubs of CONFIG. The tokens stay the same: edges need no new ones.

    The file is not changed. Tokens that are declared already are passed over, so that the command can be repeated.
    Their tenants must be declared before. A hub admits the tokens of its `tokens_file` as long as that is set.

    \b
    weft hub token import hub.yaml --file tokens
    """
    from weft.cloud_hub.declared import changes
    from weft.commands.credentials.token import read_file

    identities = read_file(path)
    _confirm_first(config_file, yes)
    known = changes.KnownTokens()
    changed = declare_all(config_file, [changes.import_token(each, known) for each in identities], by, reason)
    names = [each.name for each, is_new in zip(identities, changed, strict=True) if is_new]
    shown = f": {changes.listed(names)}" if names else ""
    click.echo(f"declared {counted(len(names), 'token')}{shown}; {len(identities) - len(names)} were there already")


@command.command()
@config_argument
@click.argument("name")
@expires_option
@click.option("--overlap", metavar="DURATION", default="7d", show_default=True, help="Time for which the secret before "
              "stays in force; 0s for none.")  # fmt: skip
@click.option("--end-oldest", is_flag=True, help="If two secrets are in force already, end the older one now.")
@reason_option
@by_option
@json_option
def rotate(
    config_file: str,
    name: str,
    *,
    expires: str | None,
    overlap: str,
    end_oldest: bool,
    reason: str,
    by: str | None,
    as_json: bool,
) -> None:
    """Give token NAME at the hubs of CONFIG another secret and print it. The one before stays in force for a while.

    Its owner takes the new one meanwhile; then links with the old one end. Access and name remain the same. A secret
    that a tokens file of a host has, too, stays in force there: see `weft token revoke`.

    \b
    weft hub token rotate hub.yaml press-7 --overlap 14d
    """
    from weft.cloud_hub.api.tokens import hash_token, new_token
    from weft.cloud_hub.declared import changes
    from weft.cloud_hub.declared.documents import Secret

    token = new_token()
    until: int | None = None
    had_end = False

    def decision(now: int) -> Decision:
        nonlocal until
        until = end_of(expires, now, "--expires")
        old_until = end_of(overlap, now, "--overlap")
        assert old_until is not None, "the option has a default"
        rotate = changes.rotate_token(name, Secret(hash_token(token), until), now, old_until, ends_oldest=end_oldest)

        def decide(state: ClusterState) -> Change | None:
            nonlocal had_end
            had_end = changes.has_end(state, name)
            return rotate(state)

        return decide

    declare(config_file, decision, by, reason)
    _print_secret(name, token, until, as_json=as_json)
    if until is None and had_end:
        click.echo(f"the new secret of {name} has no end, unlike the one before: --expires gives it one", err=True)
    _warn_of_file(config_file, name)


@command.command()
@config_argument
@click.argument("name")
@reason_option
@by_option
@json_option
def remove(config_file: str, name: str, *, reason: str, by: str | None, as_json: bool) -> None:
    """Withdraw token NAME from the cluster log of CONFIG. Its links end two seconds later.

    A token that a tokens file of a host has, too, stays in force there: see `weft token revoke`.
    """
    from weft.cloud_hub.declared import changes
    from weft.cloud_hub.declared.documents import TOKEN

    state = declare(config_file, lambda _: changes.remove_token(name), by, reason)
    left = len(state.facts(TOKEN))
    _warn_of_file(config_file, name)
    if as_json:
        print_json({"removed": name, "left": left})
        return
    click.echo(f"withdrew {name}")
    if not left and load_hub(config_file).tokens_file is None:
        click.echo("no token is left in the cluster log: its hubs admit no one until `weft hub token add`", err=True)


@command.command("list")
@config_argument
@json_option
def list_tokens(config_file: str, *, as_json: bool) -> None:
    """List the tokens in the cluster log of CONFIG, not the tokens themselves."""
    from weft.cloud_hub.declared.documents import TOKEN

    facts = read_facts(config_file).facts(TOKEN)
    now = time.time_ns()
    found = [_view(fact, now) for _, fact in sorted(facts.items())]
    if as_json:
        print_json(found)
        return
    columns = ("name", "scope", "tenant", "edge", "secrets in force", "until", "changed", "by", "reason")
    print_table(columns, [
        (
            each["name"], f"not usable: {each['unusable']}" if each["unusable"] else shown_access(each),
            each["tenant"] or "", each["edge"] or "",
            each["secrets"], each["until"] or "", each["changed"], each["by"], each["reason"],
        )
        for each in found
    ])  # fmt: skip


def _confirm_first(config_file: str, yes: bool) -> None:
    from weft.cloud_hub.declared.documents import TOKEN

    config = load_hub(config_file)
    if yes or config.tokens_file is not None or config.jwt is not None or config.anonymous == "never":
        return
    if read_facts(config_file).last(TOKEN) == 0:
        confirm(
            "this is the first token of the store: from now on, all of its hubs demand a token, for good, and links "
            "without one end. Add it?",
            "nothing was declared",
        )


def _warn_of_file(config_file: str, name: str) -> None:
    # The file may be another one on each host, so this one's cannot tell.
    if load_hub(config_file).tokens_file is not None:
        click.echo(
            f"warning: the tokens file of a hub may have {name}, too, for instance after `weft hub token import`. Its "
            f"secret is then in force there until `weft token revoke {name} --file ...` on every host",
            err=True,
        )


def _print_secret(name: str, token: str, until: int | None, *, as_json: bool, **more: Any) -> None:
    from weft.cloud_hub.api.views import moment

    if as_json:
        print_json({"name": name, **more, "until": moment(until), "token": token})
    else:
        click.echo(token)


def _view(fact: Fact, now: int) -> dict[str, Any]:
    from weft.cloud_hub.api.tokens import TokensUnusable
    from weft.cloud_hub.api.views import moment
    from weft.cloud_hub.declared.credentials import identities_of
    from weft.cloud_hub.declared.documents import UnreadableDocument

    about = {"version": fact.version, "changed": moment(fact.at), "by": fact.by, "reason": fact.reason}
    try:
        secrets = list(identities_of(fact))
    except (UnreadableDocument, TokensUnusable) as error:
        nothing = dict.fromkeys(("scope", "tenant", "edge", "until"))
        return {"name": fact.name, **nothing, "grants": [], "secrets": 0, **about, "unusable": str(error)}
    in_force = [until for _, until in secrets if until is None or until > now]
    identity = secrets[-1][0] if secrets else None
    ends = None if None in in_force else max((until for until in in_force if until is not None), default=now)
    return {
        "name": fact.name,
        "scope": identity and str(identity.scope),
        "tenant": identity and identity.tenant,
        "edge": identity and identity.edge,
        "grants": list(identity.grants) if identity else [],
        "until": moment(ends) if in_force else "ended",
        "secrets": len(in_force),
        **about,
        "unusable": None,
    }
