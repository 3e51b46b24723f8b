"""The forge of Acme, which speaks as GitHub does: ``gittrix promote ID --strategy pr --forge acme --forge-repo web/shop``."""

from __future__ import annotations

from pytest_gittrix.backends import GitHubForge


def forge(repo: str, *, token: str | None, base_url: str = "https://git.acme.example/api/v3") -> GitHubForge:
    """Return the forge with a repository."""
    return GitHubForge(repo, base_url=base_url, token=token)
