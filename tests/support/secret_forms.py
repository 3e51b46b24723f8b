"""Files that hold a credential in the forms that tools and issuers document. The values are made here; none was ever anybody's.

The forms were written down before the rules were changed for any of them, and divided by the drawing of a hash: ``KNOWN`` was looked at
while the rules were made, ``UNSEEN`` was put by and judged once, when they were done. docs/decisions/020 has what was found.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import string
import zipfile
import zlib
from typing import Final

from support.secret_corpus import BASE64, DRAW, HEX, LETTERS, UPPER, URL_SAFE, key_block, text, uuid

LOWER: Final = string.ascii_lowercase + string.digits


def password(length: int) -> str:
    """A password as a generator gives it: letters of both cases, digits, and one sign in the middle."""
    while True:
        drawn = text(length)
        if any(one.isdigit() for one in drawn) and drawn.lower() != drawn != drawn.upper():
            return f"{drawn[: length // 2]}{DRAW.choice('!#%^*-_')}{drawn[length // 2 + 1 :]}"


def github() -> str:
    return f"ghp_{text(36)}"


def in_address(word: str) -> str:
    return word.replace("+", "%2B").replace("/", "%2F")


def base64_of(content: str) -> str:
    return base64.b64encode(content.encode()).decode()


def zipped(name: str, content: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README", "what is in here\n" * 20)
        archive.writestr(name, content)
    return file.getvalue()


def noise(length: int) -> bytes:
    return DRAW.randbytes(length)


DRAW.seed(7)  # the same values whoever drew before

_TEXTS: Final[dict[str, str]] = {
    # Requests and command lines
    "bearer.sh": f'curl -H "Authorization: Bearer {text(40)}" https://api.acme.example/me\n',
    "bearer.py": f'headers = {{"Authorization": "Bearer {text(32, HEX)}"}}\n',
    "github_header.sh": f'curl -H "Authorization: token {text(40, HEX)}" https://git.acme.example/api/v3/user\n',
    "api_key_header.sh": f"curl -H 'X-API-Key: {text(32)}' https://api.acme.example/v2/jobs\n",
    "gitlab_header.sh": f'curl --header "PRIVATE-TOKEN: {text(20)}" https://git.acme.example/api/v4/projects\n',
    "api.js": f"fetch(url, {{ headers: {{ 'X-Auth-Token': '{text(36, LOWER)}' }} }});\n",
    "curl_user.sh": f"curl -u ci:{password(14)} https://nexus.acme.example/upload -T app.jar\n",
    "curl_long.sh": f"curl --user 'deploy:{password(16)}' https://ci.acme.example/job/build\n",
    "httpie.sh": f"http -a admin:{password(15)} GET https://api.acme.example/admin\n",
    "token_flag.sh": f"helmctl deploy --token {text(32)} --yes\n",
    "kubectl.sh": f"kubectl config set-credentials ci --token={text(48)}\n",
    "api_key_flag.sh": f"acmectl login --api-key {text(32, HEX)}\n",
    "mysql.sh": f"mysqldump -h db.acme.example -u root -p{password(13)} app > dump.sql\n",
    "mysql_long.sh": f"mysql --user=root --password={password(12)} app < schema.sql\n",
    "sshpass.sh": f"sshpass -p '{password(14)}' ssh deploy@10.1.2.3 uptime\n",
    "redis.sh": f"redis-cli -h cache.acme.example -a {text(24)} ping\n",
    "mongo.sh": f"mongosh mongodb.acme.example/app -u app -p {password(14)}\n",
    "pgpassword.sh": f"PGPASSWORD={password(14)} psql -h db.acme.example -U app\n",
    "psql.sh": f'psql "host=db.acme.example user=app password={password(13)} dbname=app"\n',
    "docker_password.sh": f"docker login registry.acme.example -u ci --password {password(14)}\n",
    "smb.sh": f"smbclient //files/share -U 'ACME/build%{password(13)}'\n",
    "ldap.sh": f'ldapsearch -D "cn=admin,dc=acme" -w {password(14)} -b dc=acme\n',
    "openssl.sh": f"openssl pkcs12 -in a.pfx -passin pass:{password(14)} -nodes\n",
    "gpg.sh": f"gpg --batch --passphrase {password(14)} -d secrets.gpg\n",
    # Data
    "login.json": f'{{"token": "{text(32)}"}}\n',
    "short_token.json": f'{{"user": "ci", "access_token": "{text(20)}", "expires": 3600}}\n',
    "refresh.json": f'{{"refresh_token": "{text(43, URL_SAFE)}", "scope": "read"}}\n',
    "camel.json": f'{{"clientId": "acme", "clientSecret": "{text(24)}"}}\n',
    "key.jwk": json.dumps({"kty": "EC", "crv": "P-256", "x": text(43, URL_SAFE), "y": text(43, URL_SAFE), "d": text(43, URL_SAFE)}) + "\n",
    "rsa.jwk": json.dumps({"kty": "RSA", "e": "AQAB", "n": text(342, URL_SAFE), "d": text(342, URL_SAFE)}, indent=2) + "\n",
    "oct.jwk": json.dumps({"kty": "oct", "kid": "main", "k": text(43, URL_SAFE), "alg": "HS256"}) + "\n",
    "postman.json": f'{{"bearer": [{{"key": "token", "value": "{text(40)}", "type": "string"}}]}}\n',
    "short.yaml": f"db:\n  password: {password(12)}\n",
    "short.ini": f"[smtp]\nuser = ci\npassword = {password(13)}\n",
    "short.py": f'DB_PASSWORD = "{password(14)}"\n',
    "short.js": f"const config = {{ password: '{password(15)}' }};\n",
    "short.properties": f"spring.datasource.password={password(12)}\n",
    "passphrase.toml": f'passphrase = "{password(15)}"\n',
    "secrets.yml": f"production:\n  secret_key_base: {text(128, HEX)}\n",
    "Dockerfile": f"FROM python:3\nENV DB_PASS={password(16)}\n",
    "cells.ipynb": json.dumps({"cells": [{"source": [f'os.environ["API_TOKEN"] = "{text(32)}"\n']}]}) + "\n",
    "seed.sql": f"CREATE USER app IDENTIFIED BY '{password(14)}';\n",
    "role.sql": f"ALTER ROLE app WITH PASSWORD '{password(15)}';\n",
    # Addresses
    "sas.py": f'URL = "https://acme.blob.core.windows.net/backup?sv=2022-11-02&ss=b&sp=rl&sig={in_address(text(43, BASE64))}%3D"\n',
    "sas.txt": f"https://acme.file.core.windows.net/share/a?sp=r&sv=2020-08-04&sr=b&sig={text(43, LETTERS)}%3D\n",
    "servicebus.cs": f'var c = "Endpoint=sb://a.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={text(43, BASE64)}=";\n',
    "presigned.md": f"[a](https://s3.amazonaws.com/a?X-Amz-Credential=AKIA{text(16, UPPER)}%2Fus-east-1&X-Amz-Signature={text(64, HEX)})\n",
    "query.txt": f"https://api.acme.example/v1/report?api_key={text(32)}&format=csv\n",
    "access_token.txt": f"https://graph.acme.example/me?access_token={text(60)}\n",
    "amqp.yaml": f"broker: amqps://ci:{password(13)}@mq.acme.example/prod\n",
    # Files of tools
    ".curlrc": f'user = "ci:{password(14)}"\n',
    ".wgetrc": f"http_user=ci\nhttp_password={password(13)}\n",
    ".condarc": f"channels:\n  - https://conda.acme.example/t/{text(36, HEX)}/main\n",
    ".bundle/config": f'---\nBUNDLE_GEMS__ACME__EXAMPLE: "ci:{text(20)}"\n',
    "pypoetry/auth.toml": f'[http-basic.acme]\nusername = "ci"\npassword = "{password(16)}"\n',
    ".terraformrc": f'credentials "app.acme.example" {{\n  token = "{text(24)}"\n}}\n',
    "rclone.conf": f"[box]\ntype = webdav\nuser = ci\npass = {text(32, URL_SAFE)}\n",
    ".msmtprc": f"account acme\nhost smtp.acme.example\nuser ci\npassword {password(14)}\n",
    ".muttrc": f'set imap_user = "ci"\nset imap_pass = "{password(14)}"\n',
    "ngrok.yml": f'version: "2"\nauthtoken: {text(27)}_{text(21)}\n',
    ".databrickscfg": f"[DEFAULT]\nhost = https://acme.example\ntoken = dose{text(28, HEX)}\n",
    ".sbt/.credentials": f"realm=Nexus\nhost=nexus.acme.example\nuser=ci\npassword={password(14)}\n",
    "wg0.conf": f"[Interface]\nPrivateKey = {text(43, BASE64)}=\nAddress = 10.0.0.1/24\n",
    "wpa_supplicant.conf": f'network={{\n  ssid="acme"\n  psk="{password(14)}"\n}}\n',
    "sftp-config.json": f'{{"type": "sftp", "host": "acme.example", "user": "ci", "password": "{password(13)}"}}\n',
    "filezilla.xml": f'<Server><Host>acme.example</Host><User>ci</User><Pass encoding="base64">{base64_of(password(14))}</Pass></Server>\n',
    ".config/hub": f"github.com:\n- user: ci\n  oauth_token: {text(40, HEX)}\n",
    ".yarnrc": f'"//npm.acme.example/:_authToken" "{text(36)}"\n',
    "bunfig.toml": f'[install.scopes]\nacme = {{ url = "https://npm.acme.example/", token = "{text(30)}" }}\n',
    "nuget/NuGet.Config": f'<packageSourceCredentials><acme><add key="Password" value="{text(24)}" /></acme></packageSourceCredentials>\n',
    ".vault_pass": f"{password(20)}\n",
    "tomcat-users.xml": f'<user username="admin" password="{password(13)}" roles="manager-gui"/>\n',
    "unattend.xml": f"<AdministratorPassword><Value>{password(14)}</Value></AdministratorPassword>\n",
    "snowsql/config": f"[connections]\naccountname = acme\nusername = ci\npassword = {password(15)}\n",
    # Issuers
    "cloudflare.sh": f"export CF=cfut_{text(48)}\n",
    "google_oauth.py": f'creds = Credentials("ya29.a0{text(150, URL_SAFE)}")\n',
    "google_refresh.json": f'{{"r": "1//0{text(80, URL_SAFE)}"}}\n',
    "posthog.js": f"new PostHog('phx_{text(43)}')\n",
    "nvidia.py": f'ChatNVIDIA("nvapi-{text(64, URL_SAFE)}")\n',
    "tavily.py": f'TavilyClient("tvly-{text(32)}")\n',
    "hubspot.js": f'new Client({{ a: "pat-na1-{uuid()}" }})\n',
    "dropbox.py": f'dropbox.Dropbox("sl.{text(130, URL_SAFE)}")\n',
    "easypost.py": f'EasyPostClient("EZAK{text(54)}")\n',
    "buildkite.sh": f"bk use bkua_{text(40, HEX)}\n",
    "typeform.js": f"createClient('tfp_{text(40)}_{text(16)}')\n",
    "contentful.js": f"createClient('CFPAT-{text(43, URL_SAFE)}')\n",
    "square.rb": f"Square::Client.new('sq0csp-{text(43, URL_SAFE)}')\n",
    "bedrock.sh": f"export BEDROCK=ABSK{text(110, BASE64)}=\n",
    "resend.ts": f'new Resend("re_{text(8)}_{text(24)}")\n',
    "facebook.py": f'GraphAPI("EAACEdEose0cBA{text(120)}")\n',
    "mapbox.js": f"mapboxgl.init('sk.eyJ{text(80)}.{text(22)}')\n",
    "clojars.sh": f"lein deploy clojars CLOJARS_{text(60, LOWER)}\n",
    "openshift.sh": f"oc login --server=https://acme.example:6443 sha256~{text(43, URL_SAFE)}\n",
    "duffel.py": f'Duffel("duffel_live_{text(43, URL_SAFE)}")\n',
    "linear_oauth.ts": f'client("lin_oauth_{text(64, HEX)}")\n',
    # Encoded
    "k8s_tls.yaml": f"kind: Secret\ndata:\n  tls.key: {base64_of(key_block('RSA PRIVATE KEY'))}\n",
    "encoded.sh": f"echo {base64_of('export GITHUB_TOKEN=' + github())} | base64 -d > env.sh\n",
    "data_url.html": f'<a href="data:text/plain;base64,{base64_of("[default] aws_access_key_id=AKIA" + text(16, UPPER))}">a</a>\n',
    "crlf.ini": f"[a]\r\ntoken = {github()}\r\n",
    "comment.py": f"# remove this: password={password(14)}\nrun()\n",
}
"""Text files by path."""

_BINARIES: Final[dict[str, bytes]] = {
    "utf16.ps1": f'$env:GITHUB_TOKEN = "{github()}"\r\n'.encode("utf-16"),
    "utf16be.txt": ("\ufeff" + f"token={github()}\n").encode("utf-16-be"),
    "utf16_bare.txt": f"stripe sk_live_{text(24)}\r\n".encode("utf-16-le"),
    "nul_in_text.log": f"started\n\0\nexport GITHUB_TOKEN={github()}\n".encode(),
    "late_nul.dat": b"x" * 9000 + f"\0{github()}\0".encode(),
    "core.bin": noise(3000) + b"\0" + key_block("RSA PRIVATE KEY").encode() + b"\0" + noise(3000),
    "cache.db": b"SQLite format 3\0" + noise(500) + f"\0xoxb-{text(12, string.digits)}-{text(24)}\0".encode() + noise(500),
    "module.pyc": b"\xa7\r\r\n\0\0\0\0" + noise(60) + f"\xda(ghp_{text(36)}\0".encode("latin-1") + noise(60),
    "app.exe": b"MZ\x90\0" + noise(2000) + f"\0AKIA{text(16, UPPER)}\0".encode() + noise(2000),
    "bundle.zip": zipped("config.env", f"GITHUB_TOKEN={github()}\n"),
    "lib.jar": zipped("application.properties", f"stripe=sk_live_{text(24)}\n"),
    "keys.zip": zipped("deploy", key_block("OPENSSH PRIVATE KEY")),
    "inside.zip": zipped("home/.netrc", f"machine a.example login ci password {password(12)}\n"),
    "log.gz": gzip.compress(f"start\nGITHUB_TOKEN={github()}\nend\n".encode() * 3, mtime=0),
    "dump.sql.gz": gzip.compress(f"SET x;\nINSERT 'sk_live_{text(24)}';\n".encode(), mtime=0),
    "trace.bin": b"\1\2\0\0" + f"Authorization: Bearer ghp_{text(36)}\r\n".encode() + b"\0\0",
}
"""Files with bytes that are no text, by path."""

FORMS: Final[dict[str, bytes]] = {**{path: content.encode() for path, content in _TEXTS.items()}, **_BINARIES}
KNOWN: Final = {path: content for path, content in FORMS.items() if zlib.crc32(path.encode()) % 2}
UNSEEN: Final = {path: content for path, content in FORMS.items() if path not in KNOWN}
