"""Tables whose columns several parties hold: the default federation beside models of the joined table."""
