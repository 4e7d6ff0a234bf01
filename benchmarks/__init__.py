"""Measurements that have a number to defend; `python -m benchmarks` runs them (`make bench`).

Every figure is printed with the machine, the durability class and the settings beside it, and a
run whose ledger shows a loss, a duplicate or a wrong order is void however fast it was.
"""
