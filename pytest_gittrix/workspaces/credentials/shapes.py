"""What credentials look like: the names of files that hold them, and the shapes of keys, tokens and passwords in bytes.

Three tables. What is fixed has a prefix from its issuer, and is a credential in any bytes. What is loose is one in text. What is guarded is
a word at a place where credentials stand, such as behind ``Bearer`` or ``--password``, and only if it was drawn by chance.

These are pure functions over names and bytes. An agent wrote the bytes, so no pattern may take a time that grows with the square of a line.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import Final

_NAMES: Final = re.compile(
    r"\.env(\..*)?|token\.txt|id_(rsa|dsa|ecdsa|ed25519)(_sk)?|[._]netrc|\.git-credentials|\.pypirc|\.pgpass|pgpass\.conf|\.my\.cnf|\.htpasswd"
    r"|\.dockercfg|\.vault-token|\.s3cfg|\.boto|\.claude\.json|\.credentials\.json|credentials\.json|credentials\.tfrc\.json"
    r"|application_default_credentials\.json|service[-_]account(s|[-_]key)?\.json|client_secrets?.*\.json|kubeconfig"
    r"|\.vault[-_]pass(word)?(\.txt)?|\.mylogin\.cnf|\.databrickscfg|\.fetchmailrc|\.msmtprc|\.smbcredentials|\.passwd-s3fs|rclone\.conf|\.ftpconfig"
    r"|sitemanager\.xml|recentservers\.xml|.*\.tfstate(\.backup)?|.*\.(pem|key|p12|pfx|ppk|jks|keystore|kdbx)",
    re.DOTALL,
)
_PATHS: Final = re.compile(
    r"(.*/)?(\.config/((gh|gcloud)/.*|hub)|\.(sbt|ivy2)/\.credentials|\.snowsql/config|pypoetry/auth\.toml|\.aws/credentials|\.docker/config\.json|\.kube/config|\.(codex|composer)/auth\.json"
    r"|\.(cargo|gem)/credentials(\.toml)?|\.azure/(accesstokens|msal_token_cache)\.json|\.ssh/(?!config$|known_hosts|authorized_keys|.*\.pub$).+)",
    re.DOTALL,
)

_FIXED: Final[tuple[tuple[str, bytes, bytes], ...]] = (
    ("age key", b"AGE-SECRET", rb"AGE-SECRET-KEY-1[0-9A-Z]{58}\b"),
    ("AWS access key", b"AKIA", rb"\bAKIA[0-9A-Z]{16}\b"),
    ("AWS temporary key", b"ASIA", rb"\bASIA[0-9A-Z]{16}\b"),
    ("AWS secret key", b"aws_secret_access_key", rb"aws_secret_access_key\W{1,6}[0-9A-Za-z/+]{40}\b"),
    ("Alibaba key", b"LTAI", rb"\bLTAI[0-9A-Za-z]{12,20}\b"),
    ("Tencent key", b"AKID", rb"\bAKID[0-9A-Za-z]{32}\b"),
    ("Azure storage key", b"AccountKey=", rb"AccountKey=[0-9A-Za-z+/]{80,}={0,2}"),
    ("Google API key", b"AIza", rb"\bAIza[\w-]{35}"),
    ("Google OAuth secret", b"GOCSPX-", rb"\bGOCSPX-[\w-]{28}"),
    ("GitHub token", b"gh", rb"\bgh[opsru]_[0-9A-Za-z]{36,}\b"),
    ("GitHub fine-grained token", b"github_pat_", rb"\bgithub_pat_\w{60,}"),
    ("GitLab token", b"gl", rb"\bgl(?:pat|dt|rt|ptt|soat|ft|cbt|imt|agent)-[\w-]{20,}"),
    ("Bitbucket token", b"ATBB", rb"\bATBB[0-9A-Za-z]{28,}\b"),
    ("Atlassian token", b"ATATT3", rb"\bATATT3[\w=-]{60,}"),
    ("npm token", b"npm_", rb"\bnpm_[0-9A-Za-z]{36}\b"),
    ("PyPI token", b"pypi-", rb"\bpypi-[\w-]{50,}"),
    ("RubyGems key", b"rubygems_", rb"\brubygems_[0-9a-f]{48}\b"),
    ("Cargo token", b"cio", rb"\bcio[0-9A-Za-z]{32}\b"),
    ("Docker token", b"dckr_", rb"\bdckr_[po]at_[\w-]{27,}"),
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
    ("Square key", b"sq0", rb"\bsq0(?:atp|csp)-[\w-]{22,43}"),
    ("Tavily key", b"tvly-", rb"\btvly-(?:dev-|prod-)?[0-9A-Za-z]{32}\b"),
    ("HubSpot token", b"pat-", rb"\bpat-(?:na|eu)\d-[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"),
    ("EasyPost key", b"EZ", rb"\bEZ[AT]K[0-9A-Za-z]{54}\b"),
    ("Typeform token", b"tfp_", rb"\btfp_[\w.=-]{40,}"),
    ("Contentful token", b"CFPAT-", rb"\bCFPAT-[\w-]{43}"),
    ("OpenShift token", b"sha256~", rb"\bsha256~[\w-]{43}"),
    ("Resend key", b"re_", rb"\bre_[0-9A-Za-z]{8}_[0-9A-Za-z]{24}\b"),
    ("NVIDIA key", b"nvapi-", rb"\bnvapi-[\w-]{60,}"),
    ("Dropbox token", b"sl.", rb"\bsl\.[\w-]{100,}"),
    ("Google access token", b"ya29.", rb"\bya29\.[\w-]{60,}"),
    ("Buildkite token", b"bkua_", rb"\bbkua_[0-9a-f]{40}\b"),
    ("Amazon Bedrock key", b"ABSK", rb"\bABSK[0-9A-Za-z+/]{100,}={0,2}"),
    ("Facebook token", b"EAA", rb"\bEAA[A-Z][0-9A-Za-z]{90,400}\b"),
    ("Mapbox token", b"sk.eyJ", rb"\bsk\.eyJ[\w-]{40,}\.[\w-]{20,}"),
    ("Clojars token", b"CLOJARS_", rb"\bCLOJARS_[0-9a-z]{60}\b"),
    ("Duffel token", b"duffel_", rb"\bduffel_(?:live|test)_[\w-]{43}"),
    ("Linear token", b"lin_oauth_", rb"\blin_oauth_[0-9a-f]{64}\b"),
    ("Cloudflare token", b"cf", rb"\bcf(?:k|ut|at)_[0-9A-Za-z]{40,}\b"),
    ("Google refresh token", b"1//0", rb"\b1//0[\w-]{40,}"),
    ("Azure shared key", b"SharedAccessKey=", rb"SharedAccessKey=[0-9A-Za-z+/]{43}="),
)
"""Each shape of a secret: what it is, a text that every match has, and the pattern. A pattern begins with its text, for speed; what has to
stand before is looked for behind it. Each match has a run of ``_LONG`` letters, digits and signs such as ``-`` in it."""

_LOOSE: Final[tuple[tuple[str, bytes, bytes], ...]] = (
    ("signature of an Azure address", b"sig=", rb"sig=(?<=[?&;]sig=)[0-9A-Za-z%+/]{40,}(?:%3[Dd]|=)"),
    ("Azure client secret", b"Q~", rb"\dQ~(?<=[\w.~-]{3}\dQ~)[\w.~-]{31,34}"),
    ("private key", b"PRIVATE KEY", rb"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----"),
    ("PuTTY key", b"PuTTY-User-Key", rb"PuTTY-User-Key-File-\d"),
    ("npm login", b"_auth", rb":_(?:authToken|auth|password)\s*=\s*(?!\$\{)[^\s$]{8,}"),
    ("Docker login", b'"auth"', rb'"auth"\s*:\s*"[0-9A-Za-z+/]{12,}={0,2}"'),
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
"""Shapes that programs also have in them, or that bytes have by chance, so that they count only in text."""

_WORD: Final = rb"[0-9A-Za-z+/_~!@#%^&*-]"
_END: Final = rb"""(?=["'`\s;,)<}\\&|]|\Z)"""
_OPEN: Final = rb"""\\?["'`]?"""
_USER: Final = rb"[\w.@\\/-]{1,64}"


def _after(word: bytes, least: int) -> bytes:
    """A value that follows its name, with nothing but blanks between: of an option, or in a file of settings."""
    return re.escape(word) + rb"[\"']?[ \t]{1,8}" + _OPEN + rb"(?!-)(" + _WORD + rb"{%d,200}={0,2})" % least + _END


_GUARDED: Final[tuple[tuple[str, bytes, bytes], ...]] = (
    ("token of a request", b"earer ", rb"earer[ ]{1,4}([\w.~+/-]{16,512}={0,2})" + _END),
    *(("password behind its name", word, _after(word, 12)) for word in (b"assword", b"ASSWORD", b"assphrase", b"asswd", b"DENTIFIED BY")),
    *(("token behind its name", word, _after(word, 16)) for word in (b"oken", b"TOKEN", b"ecret", b"SECRET", b"-key")),
    (
        "password of a command",
        b"-",
        rb"-(?<=[\s\"'`]-)(?:(?:p[ \t]{0,2}|[aw][ \t]{1,2})%b(?:%b:)?|[uU][ \t]{1,2}%b%b[:%%]|-user[ \t=]%b%b:)(?!-)(%b{12,64})"
        % (_OPEN, _USER, _OPEN, _USER, _OPEN, _USER, _WORD)
        + _END,
    ),
    ("password of a user", b"user", rb"user[ \t]{0,4}=[ \t]{0,4}%b%b:(%b{12,64})" % (_OPEN, _USER, _WORD) + _END),
    ("password of a source", b"BUNDLE_", rb"BUNDLE_[A-Z0-9_]{1,100}[:=][ ]{0,4}%b(?:%b:)?(%b{12,64})" % (_OPEN, _USER, _WORD) + _END),
    ("password of a file", b"pass:", rb"pass:(%b{12,64})" % _WORD + _END),
    ("token of a channel", b"/t/", rb"/t/([0-9A-Za-z-]{20,64})(?=/)"),
    ("private part of a web key", b'"d"', rb'"d"\s{0,4}:\s{0,4}"([\w-]{40,1000})"'),
    ("secret of a web key", b'"k"', rb'"k"\s{0,4}:\s{0,4}"([\w-]{22,1000})"'),
)
"""Places where credentials stand. The first group is the word, which counts if it is drawn by chance."""


def _searcher(pattern: bytes) -> tuple[re.Pattern[bytes], bool]:
    """A pattern, and whether no letter may stand before it. Without a border in front, ``re`` leaps to where its text is."""
    return re.compile(pattern.removeprefix(rb"\b")), pattern.startswith(rb"\b")


_ONE_OF_FIXED: Final = tuple((rule, literal, *_searcher(pattern)) for rule, literal, pattern in _FIXED)
_ONE_OF_LOOSE: Final = tuple((rule, literal, *_searcher(pattern)) for rule, literal, pattern in _LOOSE)
_GUARDS: Final = tuple((rule, literal, *_searcher(pattern)) for rule, literal, pattern in _GUARDED)
_WHOLE_KEY: Final = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----(?:\\[rn]|\s){1,4}"
    rb"(?:[\w-]{1,30}: [^\n]{1,80}\s{1,4}){0,4}[0-9A-Za-z+/]{32}"
)
"""A private key with its body: programs that read keys have just the line above it in them."""

_ASSIGNED: Final = re.compile(rb"[=:,>][ \t]{0,3}%b(?:base64:)?(%b{12,200}={0,2})" % (_OPEN, _WORD) + _END)
"""A word behind a sign that gives it to a name."""
PREFIXED: Final = "token with a prefix"
_PREFIXED: Final = re.compile(rb"_([0-9A-Za-z]{28,200})(?![0-9A-Za-z_.-])")
"""A long word behind a prefix, as issuers give their tokens one."""
_PASSWORD: Final = rb"passw(?:or)?d|passwd|pwd|passphrase|(?<![a-z])psk|(?<![a-z])pass"
_KIND: Final = rb"(?:[_.-]?(?:key|id|value|base|string|hex|live|prod|production|test|dev|staging|\d{1,3})){0,2}"
_BETWEEN: Final = rb"""["'`\])\\]{0,3}(?:[ \t](?:value|encoding=["']base64["'])|><value|,[ \t]?["']value["'])?[ \t]{0,9}=?\Z"""
_NAMED: Final = re.compile(
    rb"(?:secret|token|%b|(?:api|app|access|auth|private|signing|encryption)[_.-]?key|credentials?)" % _PASSWORD + _KIND + _BETWEEN,
    re.IGNORECASE,
)
"""A name that such a word is a secret's of."""
_NAMED_PASSWORD: Final = re.compile(rb"(?:%b)" % _PASSWORD + _KIND + _BETWEEN, re.IGNORECASE)
"""A name of a password: shorter words are its too."""
_LONG: Final = 15
_IN_KEYS: Final = bytes(0x41 if chr(one) in "_-+/" or (one < 128 and chr(one).isalnum()) else 0x20 for one in range(256))
_SHORT: Final = 16
_NAME: Final = 80
"""How far before its value a name may begin, in bytes."""
_CLASSES: Final = bytes(1 if 97 <= one <= 122 else 2 if 65 <= one <= 90 else 3 if 48 <= one <= 57 else 4 for one in range(256))


def is_credential_file(path: str) -> bool:
    """Whether a file of this name holds credentials whatever is in it. ``path`` is ``/``-separated; letter case does not matter."""
    folded = path.casefold()
    return _NAMES.fullmatch(folded.rpartition("/")[2]) is not None or _PATHS.fullmatch(folded) is not None


def matches(text: bytes) -> Iterator[tuple[int, int, str]]:
    """Where something in a text has the shape of a secret, up to where, and what it is."""
    yield from _shaped(text, _ONE_OF_LOOSE)
    lines = [*_long_lines(text)]
    starts = [0, *accumulate(end - start + 1 for start, end in lines)]
    for start, end, rule in _shaped(b"\n".join([text[start:end] for start, end in lines]), _ONE_OF_FIXED):
        index = bisect_right(starts, start) - 1
        moved = lines[index][0] - starts[index]
        yield start + moved, end + moved, rule
    for rule, literal, pattern, bordered in _GUARDS:
        if literal not in text:
            continue
        for match in pattern.finditer(text):
            if _is_drawn(match[1]) and not (bordered and _before(text, match.start()).isalnum()):
                yield *match.span(1), rule
    for match in _ASSIGNED.finditer(text):
        named = _NAMED if len(match[1]) >= _SHORT else _NAMED_PASSWORD
        if _is_drawn(match[1]) and named.search(_before(text, match.start(), _NAME).rpartition(b"\n")[2]):
            yield *match.span(1), "value of a secret's name"
    for match in _PREFIXED.finditer(text):
        if match[1].lower() != match[1] and _is_random(match[1]) and _before(text, match.start()).isalnum():
            yield *match.span(1), PREFIXED


def fixed_matches(data: bytes) -> Iterator[tuple[int, int, str]]:
    """As ``matches``, of bytes that are no text: keys with their issuer's prefix, and private keys as a whole."""
    yield from _shaped(data, _ONE_OF_FIXED, _is_drawn)  # the byte before may be a length, and look like a letter
    for match in _WHOLE_KEY.finditer(data):
        yield *match.span(), "private key"


def _long_lines(text: bytes) -> Iterator[tuple[int, int]]:
    """Where each line begins and ends that has a run of ``_LONG`` characters as keys are made of: an eighth of what code has."""
    marked = text.translate(_IN_KEYS)
    run, at = b"A" * _LONG, 0
    while (at := marked.find(run, at)) >= 0:
        start, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
        at = end if end >= 0 else len(text)
        yield start, at


def _shaped(
    text: bytes, shapes: tuple[tuple[str, bytes, re.Pattern[bytes], bool], ...], anywhere: Callable[[bytes], bool] = lambda _: False
) -> Iterator[tuple[int, int, str]]:
    """The matches of some shapes; ``anywhere`` says whether one counts although a letter is before it."""
    for rule, literal, pattern, bordered in shapes:
        if literal not in text:
            continue
        for match in pattern.finditer(text):
            if not bordered or not _before(text, match.start()).isalnum() or anywhere(match[0]):
                yield *match.span(), rule


def _before(text: bytes, at: int, length: int = 1) -> bytes:
    return text[max(at - length, 0) : at]


def _is_drawn(word: bytes) -> bool:
    """Whether a word is hardly one that a person wrote."""
    return (len(word) >= _SHORT and _is_random(word)) or _is_jumbled(word)


def _is_random(word: bytes) -> bool:
    """Whether a word is hardly made of words: many digits among its letters, and few of its characters twice."""
    digits = sum(0x30 <= one <= 0x39 for one in word)
    mixed = word.lower() != word and word.upper() != word
    enough = max(2, len(word) // 12) if mixed else max(4, len(word) // 6)
    return enough <= digits < len(word.replace(b"-", b"")) - 3 and len(set(word)) >= min(len(word) // 2, 12)


def _is_jumbled(word: bytes) -> bool:
    """Whether small letters, capitals, digits and signs follow each other as chance has it: words change from one to the other seldom."""
    kinds = word.translate(_CLASSES)
    if not {1, 2}.issubset(kinds) or len(set(kinds)) < 3:
        return False
    changes = sum(one != other for one, other in pairwise(kinds))
    return changes * 5 >= len(word) * 2 and len(set(word)) * 3 >= len(word) * 2
