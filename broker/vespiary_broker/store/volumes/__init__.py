"""Storage verification from inside the mounts: does every volume keep what was confirmed?

Run by the init container of a broker's pod, by `vespiary check` and `vespiary apply` on a laptop,
and by the broker itself before it opens its store. A volume that the policy refuses is not touched:
no file is made in it, nothing in it is opened.
"""
