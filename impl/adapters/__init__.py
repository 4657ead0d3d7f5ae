"""Other people's managers as targets: each runs in a child process, in an environment of its own."""
