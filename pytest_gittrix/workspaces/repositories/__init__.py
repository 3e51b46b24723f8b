"""Reading the git repositories that agents work in, as plain files that can hold anything."""
