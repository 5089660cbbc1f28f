"""Object stores, through obstore: ``store`` reads and lists, ``client`` is made from the options."""
