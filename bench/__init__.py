"""Benches: each sets up what it needs, takes it down again, and ends with one JSON line.

They lie in seven folders by what they are about: `cluster`, `local`, `node`, `operator`,
`placement`, `proxy`, `saved`. Beside these is what they all use: `hostmemory`, `processes`,
`report`; and what is done with all of them: `smoke` and `page`.
"""
