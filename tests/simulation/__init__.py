"""The agent's loop on a made-up machine, in virtual time, under any order of misfortunes.

A seed is a schedule: pods, traffic, faults at every port, lost GPUs, agents killed at any write
of their journal. Then the weather clears, and everything must work again.
"""
