"""A worker: a small hybrid model and an engine that runs it on block tables, slot ids and state slots.

It is there to be wrong where a manager is wrong: with caching, trimming, eviction and preemption on, its outputs are
those of the same requests with everything off, or something that it read was not what the manager promised.
"""
