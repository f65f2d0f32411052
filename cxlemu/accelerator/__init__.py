"""Ranks whose arrays live on a device: plans for its queues, the interface of devices, and a fake one for tests.

`plan` turns any plan into one for a device, `runner` executes that, `device` is the interface that a device has.
``fake`` is an adversarial device in this process; ``cuda``, which no machine of this project has run, is NVIDIA's.
"""
