"""The controller: has agents do what people ask for by objects, and says in them how far it is."""
