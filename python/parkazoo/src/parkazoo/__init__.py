"""ParKazoo: one ZooKeeper namespace over many ensembles."""
