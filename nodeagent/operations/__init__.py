"""Operations that people and controllers ask for: named, journalled, watchable."""
