package io.statestore.catalog

import org.apache.spark.sql.execution.streaming.state.StateStoreId

/** A state variable of `transformWithState`, or its timers, which begin with `$`. */
final case class StateVariable(name: String, isTimers: Boolean)

/**
 * A stateful operator at a version.
 *
 * @param stores   names of its stores
 * @param families names of the column families of its store, where Spark's metadata has them
 */
final case class Operator(
    id: Long,
    stores: Seq[String],
    variables: Seq[StateVariable],
    families: Seq[String])

/**
 * Where rows are.
 *
 * @param name     their name in an address; None where their operator has no others
 * @param isListed whether they are the query's own, not timers or what Spark keeps beside others
 * @param options  what Spark's state reader is asked for them; None where it does not show them
 */
final case class RowsPlace(
    operator: Long,
    name: Option[String],
    isListed: Boolean,
    options: Option[Map[String, String]])

/**
 * The addresses of rows, which are names of tables: those that the Python package gives, in
 * `operations/addresses.py` and `operations/reading/tables.py`, so that a name means the same.
 */
final class Addresses(operators: Seq[Operator]) {
  import Addresses._

  private val places = operators.flatMap(placesOf)

  /** The tables that Spark's state reader shows. */
  def tables: Seq[String] = places match {
    case Seq(_) => Seq(OnlyRows)
    case several => several.filter(_.options.isDefined).map(of)
  }

  /** The shortest address that stands for rows alone. */
  def of(place: RowsPlace): String = place.name.fold(place.operator.toString) { name =>
    val hasTwin = places.exists { other =>
      other.name == place.name && other.operator != place.operator
    }
    if (parse(name) == ((None, Some(name))) && !hasTwin) name else s"${place.operator}/$name"
  }

  /** The places of an address; of `state`, which no rows are called, those of all rows. */
  def find(address: String): Seq[RowsPlace] = {
    val (operator, name) = parse(address)
    val of = places.filter(place => operator.forall(_ == place.operator))
    val found = name.fold(of.filter(_.isListed)) { name =>
      of.filter(_.name.getOrElse(Default) == name)
    }
    if (found.isEmpty && folded(address) == OnlyRows) places.filter(_.isListed) else found
  }

  /** The places of an address whose case of letters does not count. */
  def findFolded(address: String): Seq[RowsPlace] = {
    val found = places.filter(place => folded(of(place)) == folded(address))
    if (found.sizeIs == 1) found else Nil
  }
}

private object Addresses {
  private val OnlyRows = "state"
  private val Default = StateStoreId.DEFAULT_STORE_NAME
  private val OperatorOf = "(?s)([0-9]{1,9})(?:/(.*))?".r

  /** Operator and name, None for what is not said. */
  private def parse(address: String): (Option[Long], Option[String]) = address match {
    case OperatorOf(operator, name) => (Some(operator.toLong), Option(name))
    case name => (None, Some(name))
  }

  private def placesOf(operator: Operator): Seq[RowsPlace] = {
    val variables = operator.variables.map(variable => variable.name -> variable).toMap
    val families = variables.keySet ++ operator.families
    operator.stores match {
      case Seq(store) if (families - Default).isEmpty =>
        Seq(RowsPlace(operator.id, None, isListed = true, ofStore(store)))
      case Seq(_) =>
        val names = if (variables.isEmpty) families else families - Default
        names.toSeq.sorted.map { name =>
          val options = variables.get(name) match {
            case Some(StateVariable(_, true)) => Some(Map("readRegisteredTimers" -> "true"))
            case Some(_) => Some(Map("stateVarName" -> name))
            case None if variables.isEmpty && name != Default => ofStore(name)
            case None => None
          }
          val isListed = !name.startsWith("$") && name != Default
          RowsPlace(operator.id, Some(name), isListed, options)
        }
      case stores =>
        stores.map(store => RowsPlace(operator.id, Some(store), isListed = true, ofStore(store)))
    }
  }

  private def ofStore(name: String): Some[Map[String, String]] = Some(Map("storeName" -> name))

  /** In small letters, of ASCII alone, as `statestore sql` compares names. */
  private def folded(name: String): String =
    name.map(letter => if (letter >= 'A' && letter <= 'Z') (letter + 32).toChar else letter)
}
