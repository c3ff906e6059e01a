"""Input changed at random, by seed and number, so that each case can be tried again: `make fuzz N=100000`."""
