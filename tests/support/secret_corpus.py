"""Files and lines that hold credentials. The values are made here, in the shape that their issuers give them; none was ever anybody's."""

from __future__ import annotations

import random
import string

DRAW = random.Random(7)
LETTERS = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + string.digits


def text(length: int, of: str = LETTERS) -> str:
    return "".join(DRAW.choice(of) for _ in range(length))


FILES = [
    ".env",
    ".env.production",
    "token.txt",
    "id_rsa",
    ".ssh/id_ed25519",
    ".ssh/deploy",
    ".netrc",
    "_netrc",
    ".git-credentials",
    ".pypirc",
    ".pgpass",
    ".my.cnf",
    ".htpasswd",
    ".dockercfg",
    ".docker/config.json",
    ".kube/config",
    "kubeconfig",
    ".aws/credentials",
    ".vault-token",
    ".config/gh/hosts.yml",
    ".config/gcloud/credentials.db",
    "credentials.json",
    "service-account.json",
    "client_secret_1.json",
    "application_default_credentials.json",
    ".claude.json",
    ".claude/.credentials.json",
    ".codex/auth.json",
    ".composer/auth.json",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".azure/accessTokens.json",
    "terraform.tfstate",
    "prod.tfstate.backup",
    "credentials.tfrc.json",
    ".s3cfg",
    ".boto",
    "tls/server.pem",
    "server.key",
    "a.p12",
    "a.pfx",
    "putty.ppk",
    "app.keystore",
    "vault.kdbx",
]

LINES = {
    "private key": "-----BEGIN RSA PRIVATE KEY-----",
    "OpenSSH key": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "PGP key": "-----BEGIN PGP PRIVATE KEY BLOCK-----",
    "PuTTY": "PuTTY-User-Key-File-3: ssh-ed25519",
    "AWS": f"aws_access_key_id = AKIA{text(16, UPPER)}",
    "AWS secret": f"aws_secret_access_key = {text(40)}",
    "Azure": f"AccountKey={text(86)}==",
    "Google": f'key = "AIza{text(35)}"',
    "GitHub": f"GITHUB_TOKEN=ghp_{text(36)}",
    "GitHub fine-grained": f"token: github_pat_{text(22)}_{text(59)}",
    "GitLab": f"glpat-{text(20)}",
    "npm": f"//npm.example.org/:_authToken=npm_{text(36)}",
    "npm, another registry": f"//npm.example.org/:_authToken={text(40)}",
    "PyPI": f"password = pypi-{text(60)}",
    "Docker": f'"auth": "{text(40)}=="',
    "Kubernetes": f"    client-key-data: {text(80)}",
    "OpenAI": f'OPENAI_API_KEY="sk-proj-{text(48)}"',
    "Anthropic": f"ANTHROPIC_API_KEY=sk-ant-api03-{text(90)}",
    "Hugging Face": f"hf_{text(34)}",
    "Databricks": f"dapi{text(32, HEX)}",
    "Slack": f"xoxb-{text(12, string.digits)}-{text(24)}",
    "Slack webhook": f"https://hooks.slack.com/services/T{text(8, UPPER)}/B{text(8, UPPER)}/{text(24)}",
    "Discord": f"M{text(23)}.{text(6)}.{text(27)}",
    "Telegram": f"{text(9, '123456789')}:AA{text(33)}",
    "Stripe": f"sk_live_{text(24)}",
    "Shopify": f"shpat_{text(32, HEX)}",
    "SendGrid": f"SG.{text(22)}.{text(43)}",
    "Mailgun": f"key-{text(32, HEX)}",
    "Twilio": f"SK{text(32, HEX)}",
    "DigitalOcean": f"dop_v1_{text(64, HEX)}",
    "Terraform": f"{text(14)}.atlasv1.{text(67)}",
    "Vault": f"hvs.{text(24)}",
    "JSON web token": f"Authorization: Bearer eyJ{text(20)}.eyJ{text(40)}.{text(43)}",
    "password of a database": f"DATABASE_URL=postgres://app:{text(12)}@db.example.org/app",
    "htpasswd": f"alice:$apr1${text(8)}${text(22)}",
    "machine": f"machine git.example.org login alice password {text(16)}",
}
