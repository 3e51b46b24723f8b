"""How sessions end without being kept: their work is archived, and their workspaces are removed."""
