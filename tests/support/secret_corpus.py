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


# What a workspace typically holds ---------------------------------------------------------------------------------------------------
#
# Whole files, in the formats that their issuers document. They were collected without looking at the rules, so that they show what the
# rules miss; the page docs/decisions/020 says how many they found before they were mended.

BASE64 = LETTERS + "+/"
URL_SAFE = LETTERS + "-_"


def key_block(kind: str) -> str:
    """A key file: its border lines, and 20 lines between them."""
    lines = "\n".join(text(64, BASE64) for _ in range(20))
    return f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----\n"


def uuid() -> str:
    return "-".join(text(length, HEX) for length in (8, 4, 4, 4, 12))


TYPICAL = {
    # Clouds
    "infra/main.tf": f'provider "aws" {{\n  access_key = "AKIA{text(16, UPPER)}"\n  secret_key = "{text(40, BASE64)}"\n}}\n',
    "infra/prod.tfvars": f'azure_client_secret = "{text(3)}8Q~{text(34)}"\n',
    "deploy/gcp.json": f'{{"type": "service_account", "private_key": "{key_block("PRIVATE KEY")}"}}\n'.replace("\n", "\\n"),
    "scripts/upload.py": f'oss = Auth("LTAI5t{text(18)}", "{text(30)}")\n',
    "scripts/cos.py": f'SecretId = "AKID{text(32)}"\nSecretKey = "{text(32)}"\n',
    "storage.config": f"DefaultEndpointsProtocol=https;AccountName=acme;AccountKey={text(86, BASE64)}==;EndpointSuffix=core.windows.net\n",
    "wrangler.sh": f"export CLOUDFLARE_API_TOKEN={text(40, URL_SAFE)}\n",
    "Procfile.local": f"web: HEROKU_API_KEY=HRKU-AA{text(58, URL_SAFE)} ./run\n",
    "doctl.sh": f"doctl auth init -t dop_v1_{text(64, HEX)}\n",
    "netlify.sh": f"NETLIFY_AUTH_TOKEN=nfp_{text(36)} netlify deploy\n",
    # Code hosts and registries
    "ci/release.sh": f"gh auth login --with-token <<< ghp_{text(36)}\n",
    "ci/app.py": f'installation = "ghs_{text(36)}"\n',
    "ci/bitbucket.sh": f"curl -u bot:ATBB{text(32)} https://api.bitbucket.org/2.0/user\n",
    "ci/jira.py": f'JIRA = ("bot@acme.example", "ATATT3xFfGF0{text(171, URL_SAFE)}={text(8, HEX.upper())}")\n',
    ".npmrc": f"//npm.acme.example/:_authToken=npm_{text(36)}\n",
    ".yarnrc.yml": f'npmScopes:\n  acme:\n    npmAuthToken: "{uuid()}"\n',
    "pip.conf": f"[global]\nindex-url = https://ci:{text(20)}@pypi.acme.example/simple\n",
    "nuget.config": f'<configuration><add key="ClearTextPassword" value="{text(24)}" /></configuration>\n',
    "settings.xml": f"<server><id>acme</id><username>ci</username><password>{text(20)}</password></server>\n",
    "gradle.properties": f"signing.password={text(20)}\nossrhPassword={text(24)}\n",
    "publish.rb": f'GEM_HOST_API_KEY = "rubygems_{text(48, HEX)}"\n',
    "docker.sh": f"docker login -u acme -p dckr_pat_{text(27, URL_SAFE)}\n",
    "artifactory.sh": f"jf c add --access-token=cmVmd{text(59)}\n",
    "circle.sh": f"export CIRCLE_TOKEN=CCIPAT_{text(22)}_{text(40, HEX)}\n",
    # Models
    "agent.py": f'client = OpenAI(api_key="sk-proj-{text(74, URL_SAFE)}T3BlbkFJ{text(74, URL_SAFE)}")\n',
    "claude.sh": f"ANTHROPIC_API_KEY=sk-ant-api03-{text(93, URL_SAFE)}AA claude -p go\n",
    "router.py": f'headers = {{"Authorization": "Bearer sk-or-v1-{text(64, HEX)}"}}\n',
    "grok.yaml": f"xai:\n  key: xai-{text(80)}\n",
    "search.py": f'PERPLEXITY = "pplx-{text(48)}"\n',
    "gemini.js": f'const genAI = new GoogleGenerativeAI("AIzaSy{text(33, URL_SAFE)}");\n',
    "hub.py": f'login(token="hf_{text(34, string.ascii_letters)}")\n',
    "trace.sh": f"export LANGSMITH_API_KEY=lsv2_pt_{text(32, HEX)}_{text(10, HEX)}\n",
    "index.py": f'Pinecone(api_key="pcsk_{text(6)}_{text(63)}")\n',
    # Money and messages
    "billing.rb": f"Stripe.api_key = 'sk_live_51{text(97)}'\n",
    "shop.php": f"$razorpay = new Api('rzp_live_{text(14)}', '{text(24)}');\n",
    "pay.py": f'gateway = "access_token$production${text(16, LETTERS.lower())}${text(32, HEX)}"\n',
    "bot.py": f'app = App(token="xoxb-{text(12, string.digits)}-{text(13, string.digits)}-{text(24)}")\n',
    "notify.sh": f"curl https://hooks.slack.com/services/T{text(10, UPPER)}/B{text(10, UPPER)}/{text(24)} -d @m.json\n",
    "teams.sh": f"curl https://acme.webhook.office.com/webhookb2/{uuid()}@{uuid()}/IncomingWebhook/{text(32, HEX)}/{uuid()}\n",
    "discord.py": f'bot.run("MTA{text(21)}.G{text(5)}.{text(38, URL_SAFE)}")\n',
    "telegram.toml": f'token = "{text(10, "123456789")}:AA{text(33, URL_SAFE)}"\n',
    "mail.py": f'sg = SendGridAPIClient("SG.{text(22, URL_SAFE)}.{text(43, URL_SAFE)}")\n',
    "brevo.py": f'key = "xkeysib-{text(64, HEX)}-{text(16)}"\n',
    "sms.js": f"const client = twilio('AC{text(32, HEX)}', '{text(32, HEX)}');\nconst auth_token = '{text(32, HEX)}';\n",
    # Observing and working together
    "datadog.yaml": f"api_key: {text(32, HEX)}\n",
    "dynatrace.sh": f"DT_API_TOKEN=dt0c01.{text(24, UPPER)}.{text(64, UPPER)} ./send\n",
    "grafana.ini": f"token = glc_{text(80)}==\n",
    "sentry.properties": f"auth.token=sntrys_eyJ{text(80)}={text(43)}\n",
    "newrelic.yml": f"license: {text(36, HEX)}FFFFNRAL\nuser_key: NRAK-{text(27, UPPER)}\n",
    "figma.ts": f'const token = "figd_{text(40, URL_SAFE)}";\n',
    "airtable.py": f'Api("pat{text(14)}.{text(64, HEX)}")\n',
    "notion.js": f'new Client({{ auth: "secret_{text(43)}" }});\n',
    # Own services
    "config/settings.py": f'SECRET_KEY = "django-insecure-{text(50)}"\nDB_PASSWORD = "{text(20)}"\n',
    "config/app.env": f"APP_KEY=base64:{text(43, BASE64)}=\n",
    "appsettings.json": f'{{"Default": "Server=db;Database=app;User Id=sa;Password={text(16)}!;"}}\n',
    "wp-config.php": f"define( 'DB_PASSWORD', '{text(18)}' );\ndefine( 'AUTH_KEY', '{text(64)}' );\n",
    "docker-compose.yml": f"services:\n  db:\n    environment:\n      POSTGRES_PASSWORD: {text(20)}\n",
    "k8s/secret.yaml": f"apiVersion: v1\nkind: Secret\ndata:\n  password: {text(32, BASE64)}\n",
    "db.go": f'dsn := "postgresql://app:{text(16)}@10.0.0.5:5432/app?sslmode=require"\n',
    "celery.py": f'broker_url = "redis://:{text(24)}@redis.acme.example:6379/0"\n',
    "keys/deploy": key_block("OPENSSH PRIVATE KEY"),
    "api.http": f"GET https://api.acme.example/me\nAuthorization: Basic {text(40, BASE64)}\n",
    "session.http": f"Authorization: Bearer eyJ{text(33, URL_SAFE)}.eyJ{text(80, URL_SAFE)}.{text(43, URL_SAFE)}\n",
    "vault.sh": f"export VAULT_TOKEN=hvs.CAES{text(90, URL_SAFE)}\n",
}
"""Files by path, each with a credential in it, as people and agents leave them."""
