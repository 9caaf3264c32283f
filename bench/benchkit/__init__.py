"""What all cases share: the runner, records, what may be said of samples, and how programs are run and measured."""
