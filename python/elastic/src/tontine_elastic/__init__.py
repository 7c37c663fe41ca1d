"""Adapters of Tontine's elasticity in Python.

`adapter` is the contract that all of them speak, and `ec2` a provider of machines.
"""
