"""Finds credentials in what is about to leave a workspace: by the names of files, and by lines that have the shape of a secret.

The tables hold what is hardly ever anything else: files that hold credentials by their names, keys whose issuer gave them a prefix, private
keys, and logins in addresses. A word such as "password" in a line proves nothing, so ordinary code is not held up. Only added lines are
looked at: what a remote has already cannot be kept from it.

These are pure functions over names and bytes. An agent wrote the bytes, so a long line is looked at in pieces: else some patterns would
take a time that grows with the square of its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_BINARY: Final = 8000
"""How many bytes show whether a file is binary, as git decides it."""
_PIECE: Final = 4096
_SHORTEST: Final = 16
"""Bytes of the shortest line that can hold a secret."""
_OVERLAP: Final = 512
"""Bytes that a piece of a long line shares with the next one, so that a secret is whole in one of them."""

_NAMES: Final = re.compile(
    r"\.env(\..*)?|token\.txt|id_(rsa|dsa|ecdsa|ed25519)(_sk)?|[._]netrc|\.git-credentials|\.pypirc|\.pgpass|pgpass\.conf|\.my\.cnf|\.htpasswd"
    r"|\.dockercfg|\.vault-token|\.s3cfg|\.boto|\.claude\.json|\.credentials\.json|credentials\.json|credentials\.tfrc\.json"
    r"|application_default_credentials\.json|service[-_]account(s|[-_]key)?\.json|client_secrets?.*\.json|kubeconfig"
    r"|.*\.tfstate(\.backup)?|.*\.(pem|key|p12|pfx|ppk|jks|keystore|kdbx)",
    re.DOTALL,
)
_PATHS: Final = re.compile(
    r"(.*/)?(\.config/(gh|gcloud)/.*|\.aws/credentials|\.docker/config\.json|\.kube/config|\.(codex|composer)/auth\.json"
    r"|\.(cargo|gem)/credentials(\.toml)?|\.azure/(accesstokens|msal_token_cache)\.json|\.ssh/(?!config$|known_hosts|authorized_keys|.*\.pub$).+)",
    re.DOTALL,
)

_SHAPES: Final[tuple[tuple[str, bytes, bytes], ...]] = (
    ("private key", b"PRIVATE KEY", rb"-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY( BLOCK)?-----"),
    ("PuTTY key", b"PuTTY-User-Key", rb"PuTTY-User-Key-File-\d"),
    ("age key", b"AGE-SECRET", rb"\bAGE-SECRET-KEY-1[0-9A-Z]{58}\b"),
    ("AWS access key", b"AKIA", rb"\bAKIA[0-9A-Z]{16}\b"),
    ("AWS temporary key", b"ASIA", rb"\bASIA[0-9A-Z]{16}\b"),
    ("AWS secret key", b"aws_secret_access_key", rb"aws_secret_access_key\W{1,6}[0-9A-Za-z/+]{40}\b"),
    ("Azure storage key", b"AccountKey=", rb"AccountKey=[0-9A-Za-z+/]{80,}={0,2}"),
    ("Google API key", b"AIza", rb"\bAIza[\w-]{35}"),
    ("Google OAuth secret", b"GOCSPX-", rb"\bGOCSPX-[\w-]{28}"),
    ("GitHub token", b"gh", rb"\bgh[opsru]_[0-9A-Za-z]{36,}\b"),
    ("GitHub fine-grained token", b"github_pat_", rb"\bgithub_pat_\w{60,}"),
    ("GitLab token", b"gl", rb"\bgl(pat|dt|rt|ptt|soat|ft)-[\w-]{20,}"),
    ("npm token", b"npm_", rb"\bnpm_[0-9A-Za-z]{36}\b"),
    ("npm login", b"_auth", rb":_(authToken|auth|password)\s*=\s*(?!\$\{)[^\s$]{8,}"),
    ("PyPI token", b"pypi-", rb"\bpypi-[\w-]{50,}"),
    ("Docker login", b'"auth"', rb'"auth"\s*:\s*"[0-9A-Za-z+/]{12,}={0,2}"'),
    ("Kubernetes client key", b"client-key-data", rb"client-key-data\W{1,4}[0-9A-Za-z+/]{40,}"),
    ("OpenAI key", b"sk-", rb"\bsk-(proj-|svcacct-|admin-)?(?!ant-)[0-9A-Za-z_-]{32,}"),
    ("Anthropic key", b"sk-ant-", rb"\bsk-ant-[\w-]{32,}"),
    ("Hugging Face token", b"hf_", rb"\bhf_[0-9A-Za-z]{30,}\b"),
    ("Replicate token", b"r8_", rb"\br8_[0-9A-Za-z]{37}\b"),
    ("Groq key", b"gsk_", rb"\bgsk_[0-9A-Za-z]{40,}\b"),
    ("Databricks token", b"dapi", rb"\bdapi[0-9a-f]{32}\b"),
    ("Slack token", b"xox", rb"\bxox[abeprs]-[0-9A-Za-z-]{10,}"),
    ("Slack app token", b"xapp-", rb"\bxapp-\d-[0-9A-Za-z-]{20,}"),
    ("Slack webhook", b"hooks.slack.com", rb"hooks\.slack\.com/services/T\w{6,}/B\w{6,}/\w{16,}"),
    ("Discord token", b".", rb"\b[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27,}"),
    ("Discord webhook", b"/api/webhooks/", rb"discord(app)?\.com/api/webhooks/\d{17,}/[\w-]{60,}"),
    ("Telegram token", b":AA", rb"\b\d{8,10}:AA[\w-]{33}\b"),
    ("Stripe key", b"k_", rb"\b[rs]k_(live|test)_[0-9A-Za-z]{16,}\b"),
    ("Stripe webhook secret", b"whsec_", rb"\bwhsec_[0-9A-Za-z+/]{32,}"),
    ("Shopify token", b"shp", rb"\bshp(at|ca|pa|ss)_[0-9a-fA-F]{32}\b"),
    ("Square token", b"EAAA", rb"\bEAAA[\w-]{60}\b"),
    ("SendGrid key", b"SG.", rb"\bSG\.[\w-]{16,}\.[\w-]{32,}"),
    ("Mailgun key", b"key-", rb"\bkey-[0-9a-f]{32}\b"),
    ("Mailchimp key", b"-us", rb"\b[0-9a-f]{32}-us\d{1,2}\b"),
    ("Twilio key", b"SK", rb"\bSK[0-9a-f]{32}\b"),
    ("DigitalOcean token", b"_v1_", rb"\bdo[opr]_v1_[0-9a-f]{64}\b"),
    ("Terraform token", b".atlasv1.", rb"\b\w{14}\.atlasv1\.[\w-]{60,}"),
    ("Vault token", b"hv", rb"\bhv[bsr]\.[\w-]{24,}"),
    ("Doppler token", b"dp.", rb"\bdp\.(pt|st|ct|sa|scim|audit)\.[\w.-]{40,}"),
    ("Linear key", b"lin_api_", rb"\blin_api_[0-9A-Za-z]{40}\b"),
    ("Notion token", b"ntn_", rb"\bntn_[0-9A-Za-z]{40,}\b"),
    ("Postman key", b"PMAK-", rb"\bPMAK-[0-9a-f]{24}-[0-9a-f]{34}\b"),
    ("New Relic key", b"NRAK-", rb"\bNRAK-[0-9A-Z]{27}\b"),
    ("Grafana token", b"gl", rb"\bglsa_[0-9A-Za-z]{32}_[0-9a-fA-F]{8}\b"),
    ("Sentry token", b"sntry", rb"\bsntry[su]_[\w=+/-]{40,}"),
    ("PlanetScale token", b"pscale_", rb"\bpscale_(tkn|pw|oauth)_[\w.-]{32,}"),
    ("Supabase key", b"sbp_", rb"\bsbp_[0-9a-f]{40}\b"),
    ("Tailscale key", b"tskey-", rb"\btskey-[a-z]+-\w{8,}-\w{16,}"),
    ("Fly token", b"fo1_", rb"\bfo1_[\w-]{40,}"),
    ("JSON web token", b"eyJ", rb"\beyJ[\w-]{16,512}\.eyJ[\w-]{16,}\.[\w-]{20,}"),
    ("password hash of a web server", b":$", rb"^[^\s:#]{1,64}:\$(apr1|2[aby])\$\S{20,}"),
    ("login of a machine", b"password", rb"^\s*machine\s+\S+\s+login\s+\S+\s+password\s+\S+"),
    (
        "password in an address",
        b"://",
        rb"\b[a-z][a-z0-9+.-]{1,20}://[^\s:/@'\"<>{}$]{1,80}:(?!\*|x+@|password@|pass@|secret@)[^\s/@'\"<>{}$*]{6,}@[\w\[]",
    ),
)
"""Each shape of a secret: what it is, a text that every line with it has, and the pattern."""
_COMPILED: Final = tuple((rule, literal, re.compile(pattern)) for rule, literal, pattern in _SHAPES)


@dataclass(frozen=True, slots=True)
class Secret:
    """A line that has the shape of a secret. The secret itself is not in here, so that this can be logged.

    Attributes:
        line: its number in the file, from 1.
        rule: what it is.
    """

    line: int
    rule: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.rule}"


def is_credential_file(path: str) -> bool:
    """Whether a file of this name holds credentials whatever is in it. ``path`` is ``/``-separated; letter case does not matter."""
    folded = path.casefold()
    return _NAMES.fullmatch(folded.rpartition("/")[2]) is not None or _PATHS.fullmatch(folded) is not None


def find_secrets(new: bytes, old: Iterable[bytes] = ()) -> list[Secret]:
    """The secrets in the lines that a file gained; a binary file has none.

    Args:
        new: the file.
        old: what it was made from: a line that one of these has was not gained.
    """
    if b"\0" in new[:_BINARY]:
        return []
    possible = [shape for shape in _COMPILED if shape[1] in new]
    known = {line for one in old for line in one.splitlines()}
    found = []
    for number, line in enumerate(new.splitlines(), 1):
        if len(line) >= _SHORTEST and line not in known:
            found += [Secret(number, rule) for rule, literal, pattern in possible if literal in line and _is_in(line, pattern)][:1]
    return found


def _is_in(line: bytes, pattern: re.Pattern[bytes]) -> bool:
    step = _PIECE - _OVERLAP
    return any(pattern.search(line[start : start + _PIECE]) for start in range(0, max(len(line) - _OVERLAP, 1), step))
