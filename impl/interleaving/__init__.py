"""Which thread goes next, decided: managers run under every order of their steps, or under one that is given."""
