"""All states that a chapter can reach in a small scope, each once.

`plain` is the reference: it goes through the concrete reading, state by state. `kvspec.model.batched` does the same on
whole frontiers. Both take their scopes, instances and coverage from here and say what they found as an `Outcome`.
"""
