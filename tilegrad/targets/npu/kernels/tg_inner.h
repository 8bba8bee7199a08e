/* No innermost loops in instructions of a chip: a design has none, and Siracusa's, whose runtime it borrows, are not its
 * own. */
#ifndef TG_INNER_H
#define TG_INNER_H
#endif
