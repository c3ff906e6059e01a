"""Data sets: what each host holds, and the transfer of the rest."""
