"""Which thread goes next, decided: managers run under every order of their steps, or under one that is given.

>>> from kvspec.impl.interleaving.explore import explore, replay
>>> from kvspec.impl.interleaving.programs import parse
>>> from kvspec.impl.interleaving.steps import concurrent
>>> program = '''blocks 3
... setup: a = allocate 1; b = copy a
... thread: release b; c = allocate 1
... thread: finish a; d = allocate 1'''
>>> explore(parse(program), concurrent).failure is None
True
>>> replay(program + "\\nschedule: 1*4", concurrent).violation is None
True

Another manager is tried by a `steps.Factory` that makes it; an `explore.Failure` prints the program and the schedule
that `replay` takes.
"""
