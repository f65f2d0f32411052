"""Studies: training and tiering on modelled hardware, published systems, peers on this machine."""
