"""One pure function for each object that a Broker or a BrokerNodeTuning owns.

Never: reads the cluster, the clock or randomness; the same resource gives the same manifests.
"""
