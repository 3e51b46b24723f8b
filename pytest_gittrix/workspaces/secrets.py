"""Finds credentials in what is about to leave a workspace: by the names of files, and by lines that have the shape of a secret.

The tables hold what is hardly ever anything else: files that hold credentials by their names, keys whose issuer gave them a prefix, private
keys, and logins in addresses. A word such as "password" in a line proves nothing, so ordinary code is not held up. Only added lines are
looked at: what a remote has already cannot be kept from it.

These are pure functions over names and bytes. An agent wrote the bytes, so a long line is looked at in pieces: else some patterns would
take a time that grows with the square of its length.
"""

from __future__ import annotations

import hashlib
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

_BINARY: Final = 8000
"""How many bytes show whether a file is binary, as git decides it."""
_FINGERPRINT: Final = 16
_IS_FINGERPRINT: Final = re.compile(rf"[0-9a-f]{{{_FINGERPRINT}}}")

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
    ("private key", b"PRIVATE KEY", rb"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----"),
    ("PuTTY key", b"PuTTY-User-Key", rb"PuTTY-User-Key-File-\d"),
    ("age key", b"AGE-SECRET", rb"AGE-SECRET-KEY-1[0-9A-Z]{58}\b"),
    ("AWS access key", b"AKIA", rb"\bAKIA[0-9A-Z]{16}\b"),
    ("AWS temporary key", b"ASIA", rb"\bASIA[0-9A-Z]{16}\b"),
    ("AWS secret key", b"aws_secret_access_key", rb"aws_secret_access_key\W{1,6}[0-9A-Za-z/+]{40}\b"),
    ("Alibaba key", b"LTAI", rb"\bLTAI[0-9A-Za-z]{12,20}\b"),
    ("Tencent key", b"AKID", rb"\bAKID[0-9A-Za-z]{32}\b"),
    ("Azure storage key", b"AccountKey=", rb"AccountKey=[0-9A-Za-z+/]{80,}={0,2}"),
    ("Azure client secret", b"Q~", rb"\dQ~(?<=[\w.~-]{3}\dQ~)[\w.~-]{31,34}"),
    ("Google API key", b"AIza", rb"\bAIza[\w-]{35}"),
    ("Google OAuth secret", b"GOCSPX-", rb"\bGOCSPX-[\w-]{28}"),
    ("GitHub token", b"gh", rb"\bgh[opsru]_[0-9A-Za-z]{36,}\b"),
    ("GitHub fine-grained token", b"github_pat_", rb"\bgithub_pat_\w{60,}"),
    ("GitLab token", b"gl", rb"\bgl(?:pat|dt|rt|ptt|soat|ft|cbt|imt|agent)-[\w-]{20,}"),
    ("Bitbucket token", b"ATBB", rb"\bATBB[0-9A-Za-z]{28,}\b"),
    ("Atlassian token", b"ATATT3", rb"\bATATT3[\w=-]{60,}"),
    ("npm token", b"npm_", rb"\bnpm_[0-9A-Za-z]{36}\b"),
    ("npm login", b"_auth", rb":_(?:authToken|auth|password)\s*=\s*(?!\$\{)[^\s$]{8,}"),
    ("PyPI token", b"pypi-", rb"\bpypi-[\w-]{50,}"),
    ("RubyGems key", b"rubygems_", rb"\brubygems_[0-9a-f]{48}\b"),
    ("Cargo token", b"cio", rb"\bcio[0-9A-Za-z]{32}\b"),
    ("Docker token", b"dckr_", rb"\bdckr_[po]at_[\w-]{27,}"),
    ("Docker login", b'"auth"', rb'"auth"\s*:\s*"[0-9A-Za-z+/]{12,}={0,2}"'),
    ("Artifactory token", b"cmVmd", rb"\bcmVmd[0-9A-Za-z]{59}\b"),
    ("Artifactory key", b"AKCp", rb"\bAKCp[0-9A-Za-z]{69}\b"),
    ("Kubernetes client key", b"client-key-data", rb"client-key-data\W{1,4}[0-9A-Za-z+/]{40,}"),
    ("CircleCI token", b"CCIPAT_", rb"\bCCIPAT_[0-9A-Za-z]{22}_[0-9a-f]{40}\b"),
    ("Heroku key", b"HRKU-", rb"\bHRKU-[\w-]{36,}"),
    ("Netlify token", b"nfp_", rb"\bnfp_[0-9A-Za-z]{36,}\b"),
    ("OpenAI key", b"sk-", rb"\bsk-(?:proj-|svcacct-|admin-|or-v1-)?(?!ant-)[0-9A-Za-z_-]{32,}"),
    ("Anthropic key", b"sk-ant-", rb"\bsk-ant-[\w-]{32,}"),
    ("xAI key", b"xai-", rb"\bxai-[0-9A-Za-z]{60,}\b"),
    ("Perplexity key", b"pplx-", rb"\bpplx-[0-9A-Za-z]{40,}\b"),
    ("Hugging Face token", b"hf_", rb"\bhf_[0-9A-Za-z]{30,}\b"),
    ("Replicate token", b"r8_", rb"\br8_[0-9A-Za-z]{37}\b"),
    ("Groq key", b"gsk_", rb"\bgsk_[0-9A-Za-z]{40,}\b"),
    ("LangSmith key", b"lsv2_", rb"\blsv2_[ps][tk]_[0-9a-f]{32}_[0-9a-f]{10}\b"),
    ("Pinecone key", b"pcsk_", rb"\bpcsk_[0-9A-Za-z]{5,8}_[0-9A-Za-z]{50,}\b"),
    ("Databricks token", b"dapi", rb"\bdapi[0-9a-f]{32}\b"),
    ("Slack token", b"xox", rb"\bxox[abeprs]-[0-9A-Za-z-]{10,}"),
    ("Slack app token", b"xapp-", rb"\bxapp-\d-[0-9A-Za-z-]{20,}"),
    ("Slack webhook", b"hooks.slack.com", rb"hooks\.slack\.com/services/T\w{6,}/B\w{6,}/\w{16,}"),
    ("Teams webhook", b"webhook.office.com", rb"webhook\.office\.com/webhookb2/[\w@/-]{60,}"),
    ("Discord token", b".", rb"\.(?:(?<=\b[MNO][\w-]{23}\.)|(?<=\b[MNO][\w-]{24}\.)|(?<=\b[MNO][\w-]{25}\.))[\w-]{6}\.[\w-]{27,}"),
    ("Discord webhook", b"/api/webhooks/", rb"/api/webhooks/\d{17,}/[\w-]{60,}"),
    ("Telegram token", b":AA", rb":AA(?<=\d{8}:AA)[\w-]{33}\b"),
    ("Stripe key", b"k_", rb"k_(?:live|test)_(?<=\b[rs]k_(?:live|test)_)[0-9A-Za-z]{16,}\b"),
    ("Stripe webhook secret", b"whsec_", rb"\bwhsec_[0-9A-Za-z+/]{32,}"),
    ("Shopify token", b"shp", rb"\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}\b"),
    ("Square token", b"EAAA", rb"\bEAAA[\w-]{60}\b"),
    ("Braintree token", b"access_token$", rb"access_token\$(?:production|sandbox)\$[0-9a-z]{16}\$[0-9a-f]{32}\b"),
    ("Razorpay key", b"rzp_", rb"\brzp_(?:live|test)_[0-9A-Za-z]{14}\b"),
    ("SendGrid key", b"SG.", rb"\bSG\.[\w-]{16,}\.[\w-]{32,}"),
    ("Brevo key", b"xkeysib-", rb"\bxkeysib-[0-9a-f]{64}-[0-9A-Za-z]{16}\b"),
    ("Mailgun key", b"key-", rb"\bkey-[0-9a-f]{32}\b"),
    ("Mailchimp key", b"-us", rb"-us(?<=\b[0-9a-f]{32}-us)\d{1,2}\b"),
    ("Twilio key", b"SK", rb"\bSK[0-9a-f]{32}\b"),
    ("DigitalOcean token", b"_v1_", rb"\bdo[opr]_v1_[0-9a-f]{64}\b"),
    ("Terraform token", b".atlasv1.", rb"\.atlasv1\.(?<=\w{14}\.atlasv1\.)[\w-]{60,}"),
    ("Vault token", b"hv", rb"\bhv[bsr]\.[\w-]{24,}"),
    ("Doppler token", b"dp.", rb"\bdp\.(?:pt|st|ct|sa|scim|audit)\.[\w.-]{40,}"),
    ("1Password token", b"ops_eyJ", rb"\bops_eyJ[0-9A-Za-z+/]{100,}"),
    ("Pulumi token", b"pul-", rb"\bpul-[0-9a-f]{40}\b"),
    ("Linear key", b"lin_api_", rb"\blin_api_[0-9A-Za-z]{40}\b"),
    ("Notion token", b"ntn_", rb"\bntn_[0-9A-Za-z]{40,}\b"),
    ("Notion token", b"secret_", rb"\bsecret_[0-9A-Za-z]{43}\b"),
    ("Airtable token", b"pat", rb"\bpat[0-9A-Za-z]{14}\.[0-9a-f]{64}\b"),
    ("Figma token", b"figd_", rb"\bfigd_[\w-]{38,}"),
    ("Postman key", b"PMAK-", rb"\bPMAK-[0-9a-f]{24}-[0-9a-f]{34}\b"),
    ("New Relic key", b"NRA", rb"\bNRAK-[0-9A-Z]{27}\b"),
    ("Dynatrace token", b"dt0", rb"\bdt0[a-z]\d\d\.[0-9A-Z]{24}\.[0-9A-Z]{64}\b"),
    ("Grafana token", b"glsa_", rb"\bglsa_[0-9A-Za-z]{32}_[0-9a-fA-F]{8}\b"),
    ("Grafana token", b"glc_", rb"\bglc_[0-9A-Za-z+/]{32,}"),
    ("Sentry token", b"sntry", rb"\bsntry[su]_[\w=+/-]{40,}"),
    ("PlanetScale token", b"pscale_", rb"\bpscale_(?:tkn|pw|oauth)_[\w.-]{32,}"),
    ("Supabase key", b"sbp_", rb"\bsbp_[0-9a-f]{40}\b"),
    ("Tailscale key", b"tskey-", rb"\btskey-[a-z]+-\w{8,}-\w{16,}"),
    ("Fly token", b"fo1_", rb"\bfo1_[\w-]{40,}"),
    ("JSON web token", b"eyJ", rb"\beyJ[\w-]{16,512}\.eyJ[\w-]{16,}\.[\w-]{20,}"),
    ("password hash of a web server", b":$", rb":\$(?<=[\w.@-]:\$)(?:apr1|2[aby])\$\S{20,}"),
    ("login of a machine", b"machine", rb"machine[ \t]+\S{1,200}[ \t]+login[ \t]+\S{1,200}[ \t]+password[ \t]+\S"),
    ("login of a request", b"uthorization", rb"uthorization[\"']?:\s?[\"']?Basic [0-9A-Za-z+/]{16,}={0,2}"),
    ("password of a server", b"assword>", rb"assword>(?![\s${{])[^<>\s]{6,200}</\w*assword>"),
    ("password of a connection", b";", rb"(?i);\s?(?:password|pwd)=(?![\s{$<])[^;\s\"'<>]{6,}"),
    (
        "password in an address",
        b"://",
        rb"://[^\s:/@'\"<>{}$]{0,80}:(?!\*|x+@|password@|pass@|secret@)[^\s/@'\"<>{}$*]{6,}@[\w\[]",
    ),
)
"""Each shape of a secret: what it is, a text that every match has, and the pattern. A pattern begins with its text, for speed; what has to
stand before is looked for behind it."""


def _searcher(pattern: bytes) -> tuple[re.Pattern[bytes], bool]:
    """A pattern, and whether no letter may stand before it. Without a border in front, ``re`` leaps to where its text is."""
    return re.compile(pattern.removeprefix(rb"\b")), pattern.startswith(rb"\b")


_COMPILED: Final = tuple((rule, literal, *_searcher(pattern)) for rule, literal, pattern in _SHAPES)
_COMMON: Final = tuple(shape for shape in _COMPILED if len(shape[1]) < 4)
_RARE: Final = re.compile(b"|".join(sorted({re.escape(shape[1]) for shape in _COMPILED if shape not in _COMMON})))
"""Most files have none of the longer texts, and one look shows that."""


_ASSIGNED: Final = re.compile(rb"""[=:,>][ \t]{0,3}["'`]?(?:base64:)?([0-9A-Za-z+/_~!@#%^&*-]{16,200}={0,2})(?=["'`\s;,)<}\\]|\Z)""")
"""A long word behind a sign that gives it to a name."""
_PREFIXED: Final = re.compile(rb"_([0-9A-Za-z]{28,200})(?![0-9A-Za-z_.-])")
"""A long word behind a prefix, as issuers give their tokens one."""
_NAMED: Final = re.compile(
    rb"""(?:secret|token|passw(?:or)?d|passwd|pwd|(?:api|app|access|auth|private|signing|encryption)[_.-]?key|credentials?)"""
    rb"(?:[_.-]?(?:key|id|value|base|string|hex|live|prod|production|test|dev|staging|\d{1,3})){0,2}"
    rb"""["'`\])]{0,2}(?:[ \t]value)?[ \t]{0,9}=?\Z""",
    re.IGNORECASE,
)
"""A name that such a word is a secret's of."""
_PRIVATE_KEY: Final = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY")
_PRIVATE_KEY_END: Final = re.compile(rb"-----END [A-Z ]*PRIVATE KEY[A-Z ]*-----")
_REST_OF_WORD: Final = re.compile(rb"[^\s\"'`<>(){}\[\],;\\]*")
_NAME: Final = 80
"""How far before its value a name may begin, in bytes."""


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


@dataclass(frozen=True, slots=True)
class Suspect:
    """A file that seems to hold credentials, without them.

    Attributes:
        path: the file.
        found: what was found in it, each as text; the lines in order.
        fingerprint: 16 hexadecimal digits, of the path and of what was found. They change with either.
    """

    path: str
    found: tuple[str, ...]
    fingerprint: str

    @property
    def has_telling_path(self) -> bool:
        """Whether the path can stand for the file: an agent may give a file the name of another one's fingerprint."""
        return _IS_FINGERPRINT.fullmatch(self.path) is None

    def is_among(self, allowed: Collection[str]) -> bool:
        """Whether a person let the file through, by its fingerprint or by its path."""
        return self.fingerprint in allowed or (self.has_telling_path and self.path in allowed)


def is_credential_file(path: str) -> bool:
    """Whether a file of this name holds credentials whatever is in it. ``path`` is ``/``-separated; letter case does not matter."""
    folded = path.casefold()
    return _NAMES.fullmatch(folded.rpartition("/")[2]) is not None or _PATHS.fullmatch(folded) is not None


def suspect(path: str, new: bytes, old: Iterable[bytes] = (), *, by_name: bool = True) -> Suspect | None:
    """Why a file seems to hold credentials; None if it does not.

    Args:
        path: the file, ``/``-separated.
        new: its bytes.
        old: what it was made from, as in ``find_secrets``.
        by_name: whether its name alone is a reason.
    """
    named = by_name and is_credential_file(path)
    secrets = find_secrets(new, old)
    if not named and not secrets:
        return None
    lines = new.split(b"\n") if secrets and not named else [new]
    evidence = [lines[one.line - 1] for one in secrets] if not named else lines
    digest = hashlib.sha256(b"\n".join([os.fsencode(path), *evidence])).hexdigest()
    return Suspect(path, ("holds credentials by its name",) * named + tuple(map(str, secrets)), digest[:_FINGERPRINT])


class Candidate(NamedTuple):
    """A file that may hold credentials: what ``suspect`` is asked."""

    path: str
    new: bytes
    old: Sequence[bytes] = ()
    by_name: bool = True


def suspects_among(files: Iterable[Candidate]) -> list[Suspect]:
    """The files that seem to hold credentials. Mostly none does, and one look at what all of them gained shows that."""
    candidates = [*files]
    if not any(one.by_name and is_credential_file(one.path) for one in candidates):
        gained = b"\n".join(_without(one.new, _lines_of(one.old)) for one in candidates if not _is_binary(one.new))
        if next(_matches(gained), None) is None:
            return []
    found = (suspect(one.path, one.new, one.old, by_name=one.by_name) for one in candidates)
    return [one for one in found if one is not None]


def find_secrets(new: bytes, old: Iterable[bytes] = ()) -> list[Secret]:
    """The secrets in the lines that a file gained, one a line; a binary file has none.

    Args:
        new: the file.
        old: what it was made from: a line that one of these has was not gained.
    """
    if _is_binary(new):
        return []
    known = _lines_of(old)
    text = _without(new, known)
    matches = [*_matches(text)]
    if not matches:
        return []
    numbers = [number for number, line in enumerate(new.split(b"\n"), 1) if line not in known]
    ends = [end.start() for end in re.finditer(b"\n", text)]
    found: dict[int, Secret] = {}
    for at, _, rule in matches:
        number = numbers[bisect_left(ends, at)]
        found.setdefault(number, Secret(number, rule))
    return [found[number] for number in sorted(found)]


def _is_binary(data: bytes) -> bool:
    return b"\0" in data[:_BINARY]


def _lines_of(files: Iterable[bytes]) -> frozenset[bytes]:
    return frozenset(chain.from_iterable(one.split(b"\n") for one in files))


def _without(data: bytes, known: Collection[bytes]) -> bytes:
    """The lines of a file that are not known."""
    return b"\n".join([line for line in data.split(b"\n") if line not in known]) if known else data


def without_secrets(text: str, stand_in: Callable[[str], str]) -> str:
    """The text with something else for each secret, up to the end of its word; a private key is replaced as a whole.

    Args:
        text: any text.
        stand_in: gives what stands for a secret.
    """
    raw = text.encode("utf-8", "surrogatepass")
    spans = sorted((start, _end_of_secret(raw, start, end)) for start, end, _ in _matches(raw))
    shown, at = [], 0
    for start, end in spans:
        if start >= at:
            secret = raw[start:end].decode("utf-8", "surrogatepass")
            shown += [raw[at:start].decode("utf-8", "surrogatepass"), stand_in(secret)]
            at = end
    return "".join([*shown, raw[at:].decode("utf-8", "surrogatepass")]) if shown else text


def _end_of_secret(text: bytes, start: int, end: int) -> int:
    closing = _PRIVATE_KEY_END.search(text, end) if _PRIVATE_KEY.match(text, start) else None
    rest = _REST_OF_WORD.match(text, end)
    return closing.end() if closing is not None else rest.end() if rest is not None else end


def _matches(text: bytes) -> Iterator[tuple[int, int, str]]:
    """Where something in a text has the shape of a secret, up to where, and what it is."""
    for rule, literal, pattern, bordered in _COMPILED if _RARE.search(text) else _COMMON:
        if literal not in text:
            continue
        for match in pattern.finditer(text):
            if not bordered or not _before(text, match.start()).isalnum():
                yield *match.span(), rule
    for match in _ASSIGNED.finditer(text):
        if _is_random(match[1]) and _NAMED.search(_before(text, match.start(), _NAME).rpartition(b"\n")[2]):
            yield *match.span(1), "value of a secret's name"
    for match in _PREFIXED.finditer(text):
        if match[1].lower() != match[1] and _is_random(match[1]) and _before(text, match.start()).isalnum():
            yield *match.span(), "token with a prefix"


def _before(text: bytes, at: int, length: int = 1) -> bytes:
    return text[max(at - length, 0) : at]


def _is_random(word: bytes) -> bool:
    """Whether a word is hardly made of words: many digits among its letters, and few of its characters twice."""
    digits = sum(0x30 <= one <= 0x39 for one in word)
    mixed = word.lower() != word and word.upper() != word
    enough = max(2, len(word) // 12) if mixed else max(4, len(word) // 6)
    return enough <= digits < len(word.replace(b"-", b"")) - 3 and len(set(word)) >= min(len(word) // 2, 12)
